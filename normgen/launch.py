"""Launch constants, as data: which strategy a row length takes, and with what numbers.

They follow from the row length and the norm, so that the bits of a row do not depend on
its batch; only ``batch_invariant: false`` lets few rows have constants of their own.
No launch has more than 16 warps: that is 1024 threads where a warp has 64.  The numbers
were measured on an H200 in bfloat16 (docs/performance.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normgen.fields import LARGEST_CHANNEL_ROW, LARGEST_REGISTER_ROW

Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class Rule:
    """How a strategy is sized.

    ``values`` is what a program holds at once where the row length does not say:
    several rows, or a chunk of one.
    """

    values: int
    values_per_thread: int
    why: str  # true of every length that takes the strategy by itself


RULES: dict[tuple[Direction, str], Rule] = {
    ("forward", "rows"): Rule(
        2048,
        16,
        "Short rows: several a program, until 4 warps have 16 values a thread.",
    ),
    ("forward", "row"): Rule(
        0, 32, "A row in registers, 32 values a thread: few warps reduce sooner."
    ),
    ("forward", "loop"): Rule(
        8192, 16, "A row too long for registers: in chunks, read again from the cache."
    ),
    ("forward", "channel"): Rule(
        8192,
        32,
        "Columns far apart, rows adjacent: 16 rows, or more up to 8192 values a tile.",
    ),
    ("backward", "channel"): Rule(
        4096,
        32,
        "Columns far apart, rows adjacent: 16 rows, or more up to 4096 values a tile.",
    ),
    ("backward", "rows"): Rule(
        4096,
        16,
        "Short rows: several at a time, until 8 warps have 16 values a thread.",
    ),
    ("backward", "row"): Rule(
        0,
        16,
        "A row and its sums in registers: 16 values a thread, or 16 warps.",
    ),
    ("backward", "loop"): Rule(
        8192, 16, "A row too long for registers: in chunks, read again from the cache."
    ),
}

MIN_BLOCK = 16
THREADS_PER_WARP = 32
MAX_WARPS = 16
#: Of one row, Triton 3.6 folds the pointers to a scalar and cannot compile their hints.
MIN_ROWS = 2
#: Rows that are adjacent in memory: 16 of 2 bytes fill a sector of 32.
MIN_ADJACENT_ROWS = 16
#: What a multiprocessor's backward programs hold together, by values of a tile.
RESIDENT_VALUES = 8192
MAX_PROGRAMS = 16
#: The longest row of each strategy where the choice is free, by the number of row means
#: in series: a second one stalls a long row that stands in registers.
LONGEST_SHORT_ROW: dict[Direction, int] = {"forward": 1024, "backward": 2048}
LONGEST_REGISTER_ROW = {1: 16384, 2: 8192}
#: ``batch_invariant: false``: up to so many rows, a row gets twice the warps.
FEW_ROWS = 128
REASON_OF_FEW_ROWS = "Few rows: small tiles, and twice the warps for their values."


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


def strategy_of(
    length: int, direction: Direction, asked: str, means: int, axis: str = "last"
) -> str:
    """The strategy of a row length: the one asked for, or by its length."""
    if axis == "channel":
        return axis
    if asked != "auto":
        return asked
    if length <= LONGEST_SHORT_ROW[direction]:
        return "rows"
    return "row" if length <= LONGEST_REGISTER_ROW[means] else "loop"


def dynamic_lengths(
    asked: str, direction: Direction, means: int, axis: str = "last"
) -> tuple[int, ...]:
    """The lengths that a dynamic norm's table lists; the last stands for all beyond it.

    They are powers of two, since a block is one.
    """
    largest = (
        LARGEST_CHANNEL_ROW
        if axis == "channel"
        else {
            "auto": 2 * LONGEST_REGISTER_ROW[means],
            "loop": RULES[direction, "loop"].values,
            **LARGEST_REGISTER_ROW,
        }[asked]
    )
    powers = (2**n for n in range(31))
    return tuple(length for length in powers if MIN_BLOCK <= length <= largest)


def launch(length: int, direction: Direction, strategy: str) -> Launch:
    """The launch constants of one row length."""
    rule, block, rows = RULES[direction, strategy], block_size(length), None
    if strategy == "loop":
        block = min(block, rule.values)
    if strategy in ("rows", "channel"):
        least = MIN_ROWS if strategy == "rows" else MIN_ADJACENT_ROWS
        rows = max(least, rule.values // block)
    values = block * (rows or 1)
    warps = values // (rule.values_per_thread * THREADS_PER_WARP)
    programs = RESIDENT_VALUES // values
    return Launch(
        block_size=block,
        rows_per_program=rows,
        num_warps=min(MAX_WARPS, max(1, warps)),
        programs=min(MAX_PROGRAMS, max(1, programs)),
    )


def launch_few(length: int, direction: Direction, strategy: str) -> Launch:
    """The constants of few rows: small tiles, with twice the warps for their values."""
    rule, many = RULES[direction, strategy], launch(length, direction, strategy)
    rows = {"rows": MIN_ROWS, "channel": MIN_ADJACENT_ROWS}.get(strategy)
    warps = 2 * many.block_size * (rows or 1) // rule.values_per_thread
    warps = min(MAX_WARPS, max(1, warps // THREADS_PER_WARP))
    return Launch(many.block_size, rows, warps, many.programs)


def reason(direction: Direction, strategy: str, asked: str) -> str:
    """Why rows take a strategy, in one sentence."""
    if asked != "auto":
        return "The spec asks for this strategy."
    return RULES[direction, strategy].why
