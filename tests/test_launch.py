"""Launch constants fit every machine, and follow from the row length alone."""

from __future__ import annotations

import itertools

import pytest

from normgen import launch
from normgen.fields import LARGEST_CHANNEL_ROW, LARGEST_REGISTER_ROW
from normgen.launch import FEW_ROWS, Launch, block_size, strategy_of

DIRECTIONS = ("forward", "backward")
ASKED = ("auto", "row", "rows", "loop", "channel")
LARGEST = {**LARGEST_REGISTER_ROW, "channel": LARGEST_CHANNEL_ROW}
MEANS = (1, 2)
MAX_THREADS = 1024
WARP = 64  # on AMD's CDNA; 32 elsewhere
LARGEST_TILE = 2**20  # Triton's own limit on the elements of a tensor

#: Every length up to 600, the neighbours of each power of two, and some between.
LENGTHS = sorted(
    {
        *range(1, 600),
        *range(601, 2**17, 997),
        *(2**n + d for n in range(1, 18) for d in (-1, 0, 1) if 2**n + d <= 2**17),
    }
)


def chosen(asked: str):
    """(length, direction, strategy, launch) for all lengths that ``asked`` takes."""
    for length, direction, means in itertools.product(LENGTHS, DIRECTIONS, MEANS):
        if length <= LARGEST.get(asked, length):
            axis = "channel" if asked == "channel" else "last"
            strategy = strategy_of(length, direction, asked, means, axis)
            yield (
                length,
                direction,
                strategy,
                launch.launch(length, direction, strategy),
            )
            if direction == "forward":
                few = launch.launch_few(length, direction, strategy)
                yield length, direction, strategy, few


@pytest.mark.parametrize("asked", ASKED)
def test_no_launch_has_more_threads_than_any_device_takes(asked: str) -> None:
    for *what, made in chosen(asked):
        assert 1 <= made.num_warps * WARP <= MAX_THREADS, what
        assert made.num_warps & (made.num_warps - 1) == 0, what


@pytest.mark.parametrize("asked", ASKED)
def test_a_block_holds_its_row_unless_it_is_walked_over(asked: str) -> None:
    for length, _, strategy, made in chosen(asked):
        assert made.block_size & (made.block_size - 1) == 0
        assert made.block_size >= 16
        assert strategy == "loop" or made.block_size >= length
        assert strategy != "loop" or made.block_size <= 8192


@pytest.mark.parametrize("asked", ASKED)
def test_only_two_strategies_hold_several_rows(asked: str) -> None:
    for *_, strategy, made in chosen(asked):
        rows = made.rows_per_program
        assert (rows is not None) == (strategy in ("rows", "channel"))
        assert rows is None or (rows >= 2 and rows & (rows - 1) == 0)
        assert ("ROWS_PER_PROGRAM" in made.options) == (rows is not None)


@pytest.mark.parametrize("asked", ASKED)
def test_a_tile_is_no_larger_than_triton_takes(asked: str) -> None:
    for *what, made in chosen(asked):
        assert made.block_size * (made.rows_per_program or 1) <= LARGEST_TILE, what


@pytest.mark.parametrize("asked", ASKED)
def test_a_thread_holds_at_most_32_values_of_a_tile(asked: str) -> None:
    """Of its 255 registers: backward holds x, dy and the sums of each column."""
    for *what, made in chosen(asked):
        values = made.block_size * (made.rows_per_program or 1)
        most = 128 if asked == "channel" else 32  # 16 rows of any length, 16 warps
        assert values <= most * made.num_warps * 32, what


def test_programs_of_a_multiprocessor_are_some() -> None:
    for asked in ASKED:
        for *what, made in chosen(asked):
            assert 1 <= made.programs <= 16, what


@pytest.mark.parametrize("length, block", [(1, 16), (16, 16), (17, 32), (4096, 4096)])
def test_a_block_is_the_next_power_of_two(length: int, block: int) -> None:
    assert block_size(length) == block


@pytest.mark.parametrize(
    "length, means, forward, backward",
    [
        (1, 1, "rows", "rows"),
        (1024, 1, "rows", "rows"),
        (1025, 1, "row", "rows"),
        (2049, 2, "row", "row"),
        (8192, 2, "row", "row"),
        (8193, 2, "loop", "loop"),
        (8193, 1, "row", "row"),
        (16384, 1, "row", "row"),
        (16385, 1, "loop", "loop"),
    ],
)
def test_the_strategy_follows_from_the_length(length, means, forward, backward) -> None:
    assert strategy_of(length, "forward", "auto", means) == forward
    assert strategy_of(length, "backward", "auto", means) == backward


@pytest.mark.parametrize("asked", ["row", "rows", "loop"])
def test_a_strategy_that_is_asked_for_is_taken(asked: str) -> None:
    assert {strategy_of(n, d, asked, 1) for n in LENGTHS for d in DIRECTIONS} == {asked}


def test_auto_asks_no_strategy_for_more_than_it_may_hold() -> None:
    for length, direction, means in itertools.product(LENGTHS, DIRECTIONS, MEANS):
        strategy = strategy_of(length, direction, "auto", means)
        assert length <= LARGEST_REGISTER_ROW.get(strategy, length)


def test_a_launch_depends_on_the_block_and_on_nothing_else() -> None:
    """What a dynamic table lists for a power of two holds for all lengths below it."""
    for length, direction in itertools.product(LENGTHS, DIRECTIONS):
        for strategy in ("row", "rows", "loop"):
            exact = launch.launch(length, direction, strategy)
            assert exact == launch.launch(block_size(length), direction, strategy)


def test_adjacent_rows_fill_a_sector_of_memory() -> None:
    """16 rows of 2 bytes are 32 bytes that lie together."""
    for *what, made in chosen("channel"):
        assert made.rows_per_program is not None
        assert made.rows_per_program >= 16, what


def test_the_channel_axis_has_a_strategy_of_its_own() -> None:
    for length in (1, 1024, LARGEST_CHANNEL_ROW):
        for direction in DIRECTIONS:
            assert strategy_of(length, direction, "auto", 1, "channel") == "channel"
    lengths = launch.dynamic_lengths("auto", "forward", 1, "channel")
    assert lengths[-1] == LARGEST_CHANNEL_ROW


def test_few_rows_get_smaller_tiles_and_fewer_values_a_warp() -> None:
    assert FEW_ROWS > 0
    for length, strategy in itertools.product(LENGTHS, ("row", "rows", "loop")):
        many, few = (
            launch.launch(length, "forward", strategy),
            launch.launch_few(length, "forward", strategy),
        )
        assert few.block_size == many.block_size
        assert (few.rows_per_program or 1) <= (many.rows_per_program or 1)
        assert values_per_warp(few) <= values_per_warp(many)


def values_per_warp(made: Launch) -> float:
    return made.block_size * (made.rows_per_program or 1) / made.num_warps


def test_the_options_are_the_keyword_arguments_of_a_launch() -> None:
    row = Launch(block_size=64, rows_per_program=None, num_warps=2, programs=3)
    assert row.options == {"BLOCK_SIZE": 64, "num_warps": 2}
    rows = Launch(block_size=64, rows_per_program=4, num_warps=2, programs=3)
    assert list(rows.options) == ["BLOCK_SIZE", "ROWS_PER_PROGRAM", "num_warps"]
