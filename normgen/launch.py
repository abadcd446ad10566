"""Launch constants, as data: which strategy a row length takes, and with what numbers.

They depend on the row length alone, so that the bits of a row do not depend on its
batch. Sixteen values a thread in 16-byte accesses is what each register tile aims at:
enough loads in flight to fill the memory pipe, and few enough registers for full
occupancy.  No entry has more than 16 warps: that is 1024 threads where a warp has 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normgen.spec import LARGEST_REGISTER_ROW

Direction = Literal["forward", "backward"]

MIN_BLOCK = 16
VALUES_PER_THREAD = 16
THREADS_PER_WARP = 32
MAX_WARPS = 16
#: A tile of several rows: 4 warps of 16 values a thread.
TILE = 2048
#: Of one row, Triton 3.6 folds the pointers to a scalar and cannot compile their hints.
MIN_ROWS = 2
#: A chunk of a row too long for registers; backward holds twice the values.
CHUNK = {"forward": 8192, "backward": 4096}
LONGEST_IN_REGISTERS = 16384
#: The longest row each strategy takes when the choice is free.
AUTO: dict[Direction, tuple[tuple[str, int | None], ...]] = {
    "forward": (("rows", 1024), ("row", LONGEST_IN_REGISTERS), ("loop", None)),
    "backward": (("rows", 1024), ("row", 8192), ("loop", None)),
}
#: Warps a multiprocessor holds of a persistent backward kernel (about 128 registers).
RESIDENT_WARPS = 16
#: ``batch_invariant: false``: up to so many rows, a row gets twice the warps.
FEW_ROWS = 128


@dataclass(frozen=True)
class Launch:
    """The constants of one row length; ``programs`` is per multiprocessor."""

    block_size: int
    rows_per_program: int | None
    num_warps: int
    programs: int

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of the launch."""
        sizes = {"BLOCK_SIZE": self.block_size}
        if self.rows_per_program is not None:
            sizes["ROWS_PER_PROGRAM"] = self.rows_per_program
        return {**sizes, "num_warps": self.num_warps}


def block_size(length: int) -> int:
    """The smallest power of two that holds ``length`` columns, and a vector load."""
    return max(MIN_BLOCK, 1 << (length - 1).bit_length())


def strategy_of(length: int, direction: Direction, asked: str) -> str:
    """The strategy of a row length: the one asked for, or by the table."""
    if asked != "auto":
        return asked
    return next(
        name
        for name, largest in AUTO[direction]
        if largest is None or length <= largest
    )


def dynamic_lengths(asked: str, direction: Direction) -> tuple[int, ...]:
    """The lengths that the table of a dynamic norm lists; the last stands for longer
    ones.

    They are powers of two, since a block is one.
    """
    largest = LARGEST_REGISTER_ROW.get(asked, 2 * LONGEST_IN_REGISTERS)
    if asked == "loop":
        largest = CHUNK[direction]
    powers = (2**n for n in range(MIN_BLOCK.bit_length() - 1, 31))
    return tuple(length for length in powers if length <= largest)


def launch(length: int, direction: Direction, strategy: str) -> Launch:
    """The launch constants of one row length."""
    block = block_size(length)
    rows = None
    if strategy == "loop":
        block = min(block, CHUNK[direction])
    if strategy == "rows":
        rows = max(MIN_ROWS, TILE // block)
    threads = block * (rows or 1) // VALUES_PER_THREAD
    warps = min(MAX_WARPS, max(1, threads // THREADS_PER_WARP))
    return Launch(block, rows, warps, max(1, RESIDENT_WARPS // warps))


def launch_few(length: int, strategy: str) -> Launch:
    """The forward constants of few rows: a row a program, twice the warps."""
    many = launch(length, "forward", strategy)
    rows = None if many.rows_per_program is None else MIN_ROWS
    warps = min(MAX_WARPS, max(4, 2 * many.num_warps))
    return Launch(many.block_size, rows, warps, many.programs)
