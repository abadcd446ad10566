"""Samples, groups and channels in a grid: what moves which pointer how far."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import pytest
from renderings import every_norm
from support.build import make

from normgen.grid import Grid, Pointer
from normgen.plan import plan
from normgen.shapes import shapes
from normgen.spaces import (
    COLUMN,
    ELEMENT,
    GROUP,
    HEAD,
    ROW,
    SAMPLE,
)

HEADS = {"affine.weight": "per_head"}
GROUPS = {"group_size": 16, "hidden_size": 64}
SAMPLED = {"modulation.per": "sample"}
CHANNEL = {"axis": "channel"}

#: of a call: 2 samples of 3 rows, 4 groups of 5 columns, 6 programs share a sample
SIZES = {"n_rows": 3, "GROUP": 5, "ROW": 20, "stride": 23, "programs": 6}
SAMPLES, GROUP_COUNT = 2, 4

KINDS = {
    "x": Pointer("input"),
    "y": Pointer("output", optional=True),
    "w": Pointer("column"),
    "g": Pointer("group"),
    "s": Pointer("sample"),
    "rstd": Pointer("statistic", optional=True),
    "dw_partial": Pointer("partial", optional=True),
    "ds_partial": Pointer("sample_partial", optional=True),
}


def grid_of(**fields: Any) -> Grid:
    return plan(make(**fields)).grid


class Program:
    """What a kernel asks Triton for, of one program."""

    int64 = int

    def __init__(self, ids: tuple[int, ...], counts: tuple[int, ...]) -> None:
        self.ids, self.counts = ids, counts

    def program_id(self, axis: int) -> Any:
        class Index(int):
            def to(self, dtype: type) -> int:
                assert dtype is int, "an offset needs 64 bits"
                return int(self)

        return Index(self.ids[axis])

    def num_programs(self, axis: int) -> int:
        return self.counts[axis]


def moved(
    grid: Grid,
    sample: int,
    group: int,
    program: int = 0,
    pointers: Mapping[str, Pointer] = KINDS,
) -> dict[str, Any]:
    """Where pointers stand after the prelude, all from 0."""
    samples = SAMPLES if grid.samples else 1
    programs = SIZES["programs"]
    counts = (programs * samples, GROUP_COUNT if grid.groups else 1)
    known: dict[str, Any] = {
        "tl": Program((sample * programs + program, group), counts),
        "n_rows": SIZES["n_rows"],
        "n_samples": samples,
    }
    known |= {grid.row_size: SIZES["ROW"], grid.length: SIZES["GROUP"]}
    known |= {f"{name}_ptr": 0 for name in pointers}
    known |= {f"{name}_row_stride": SIZES["stride"] for name in pointers}
    exec("\n".join(grid.prelude(pointers)), known)
    known["program"] = eval(grid.program, known)
    assert known["program"] == program
    return known


def test_a_norm_of_plain_rows_has_no_axis_and_no_prelude() -> None:
    for fields in ({}, {"residual": "pre_add"}, {"modulation.per": "row"}):
        grid = grid_of(**fields)
        assert grid.shares == ()
        assert grid.prelude(KINDS) == ()
        assert grid.statistic_row == "row"
        assert grid.constants == ("HIDDEN_SIZE",)
        assert grid.docs == {}


@pytest.mark.parametrize(
    "fields, shares, constants",
    [
        (HEADS, ("n_groups",), ("ROW_SIZE", "HIDDEN_SIZE")),
        (GROUPS, ("n_groups",), ("HIDDEN_SIZE", "GROUP_SIZE")),
        (SAMPLED, ("n_samples",), ("HIDDEN_SIZE",)),
        ({**HEADS, **SAMPLED}, ("n_samples", "n_groups"), ("ROW_SIZE", "HIDDEN_SIZE")),
        ({**GROUPS, **SAMPLED}, ("n_samples", "n_groups"), None),
        (CHANNEL, ("n_samples",), ("HIDDEN_SIZE",)),
    ],
    ids=str,
)
def test_programs_are_shared_among_samples_and_groups(
    fields, shares, constants
) -> None:
    grid = grid_of(**fields)
    assert grid.shares == shares
    assert constants in (None, grid.constants)


@pytest.mark.parametrize("group", [0, 3])
@pytest.mark.parametrize("fields", [HEADS, GROUPS], ids=str)
def test_a_group_begins_at_its_first_column(fields, group: int) -> None:
    grid = grid_of(**fields)
    known = moved(grid, 0, group)
    for name in ("x", "y", "w", "dw_partial"):
        assert known[f"{name}_ptr"] == group * SIZES["GROUP"], name
    assert known["g_ptr"] == 0  # one weight, shared by all groups
    assert known["rstd_ptr"] == group  # of [n_rows, groups]


def test_heads_share_what_is_of_a_sample_and_sum_it_apart() -> None:
    """A sample's scale is [samples, HIDDEN_SIZE]; partial sums are a head's own."""
    grid = grid_of(**HEADS, **SAMPLED)
    for head in range(GROUP_COUNT):
        known = moved(grid, 1, head)
        assert known["s_ptr"] == SIZES["stride"]
        own = (head * SAMPLES + 1) * SIZES["GROUP"]
        assert known["ds_partial_ptr"] == own
    grouped = moved(grid_of(**GROUPS, **SAMPLED), 1, 3)
    assert grouped["s_ptr"] == SIZES["stride"] + 3 * SIZES["GROUP"]
    assert grid.kind(COLUMN) == grid.kind(GROUP) == "group"
    assert grid.kind(HEAD) == "column"
    assert grid_of(**GROUPS).kind(COLUMN) == "column"


@pytest.mark.parametrize("sample", [0, 1])
def test_a_sample_begins_at_its_first_row(sample: int) -> None:
    grid = grid_of(**SAMPLED)
    known, row = moved(grid, sample, 0), SIZES["GROUP"]  # one size: no groups
    rows = sample * SIZES["n_rows"]
    assert known["x_ptr"] == rows * SIZES["stride"]
    assert known["y_ptr"] == rows * row
    assert known["s_ptr"] == sample * SIZES["stride"]
    assert known["rstd_ptr"] == rows
    assert known["w_ptr"] == known["g_ptr"] == 0


@pytest.mark.parametrize(
    "fields", [SAMPLED, {**HEADS, **SAMPLED}, {**GROUPS, **SAMPLED}], ids=str
)
def test_no_two_programs_add_to_one_place(fields) -> None:
    """Every program has a row of sums of its own, and all of them fill the memory."""
    grid = grid_of(**fields)
    columns = range(SIZES["GROUP"])
    groups = range(GROUP_COUNT) if grid.groups else (0,)
    row = SIZES["GROUP"] * len(groups)
    for name, space in (("dw_partial", COLUMN), ("ds_partial", SAMPLE)):
        found = []
        for sample, group in itertools.product(range(SAMPLES), groups):
            for program in range(SIZES["programs"]):
                known = moved(grid, sample, group, program)
                step = eval(grid.partial_rows(space), known)
                start = known[f"{name}_ptr"] + program * step
                found += [start + column for column in columns]
        count = SAMPLES * SIZES["programs"] * row
        assert sorted(found) == [*range(count)], name


def test_sums_of_a_sample_lie_beside_those_of_other_samples() -> None:
    """[programs, samples, H]: their sum over programs is one call for all samples."""
    grid = grid_of(**SAMPLED)
    known = moved(grid, 1, 0)
    assert known["ds_partial_ptr"] == SIZES["GROUP"]
    assert eval(grid.partial_rows(SAMPLE), known) == SAMPLES * SIZES["GROUP"]
    without = {n: p for n, p in KINDS.items() if n != "ds_partial"}
    assert not any("sums_stride" in line for line in grid.prelude(without))


def test_statistics_of_a_sample_and_a_group_have_a_place_each() -> None:
    grid = grid_of(**GROUPS, **SAMPLED)
    places = []
    for sample in range(SAMPLES):
        for group in range(GROUP_COUNT):
            known = moved(grid, sample, group)
            for row in range(SIZES["n_rows"]):
                known["row"] = row
                places.append(known["rstd_ptr"] + eval(grid.statistic_row, known))
    count = SAMPLES * GROUP_COUNT * SIZES["n_rows"]
    assert sorted(places) == [*range(count)]


def test_an_optional_pointer_is_moved_only_where_it_is_one() -> None:
    for fields in (HEADS, GROUPS, SAMPLED, CHANNEL):
        lines = grid_of(**fields).prelude(KINDS)
        for above, line in itertools.pairwise(lines):
            found = re.match(r"( *)(\w+)_ptr \+= ", line)
            if found:
                asked = above == f"if {found[2]}_ptr is not None:"
                assert asked == KINDS[found[2]].optional == bool(found[1]), line


def test_channels_lie_like_results() -> None:
    grid = grid_of(**CHANNEL)
    assert grid.input_kind == "output"
    assert (
        grid.row_doc("x")
        == grid.output_doc
        == ("[samples, HIDDEN_SIZE, n_rows], contiguous")
    )
    assert "adjacent in memory" in grid.docs["n_rows"]
    spaces = {"x": ELEMENT, "s": SAMPLE}
    assert grid.given_strides(("x", "s"), spaces) == ("s",)
    assert grid_of().given_strides(("x", "s"), spaces) == ("x", "s")


@pytest.mark.parametrize("name", every_norm())
def test_every_size_that_a_prelude_reads_is_an_argument(name: str) -> None:
    made = plan(every_norm()[name])
    for kernel in (*made.forward_kernels, *made.backward_kernels):
        arguments = {argument.name for argument in kernel.arguments}
        text = "\n".join(kernel.prelude)
        local = set(re.findall(r"^(\w+) = ", text, re.M))
        read = set(
            re.findall(
                r"\b(\w+)_ptr\b|\b([A-Z]+_SIZE|n_rows|n_samples|\w+_stride)", text
            )
        )
        for pointer, size in read:
            assert (f"{pointer}_ptr" if pointer else size) in arguments | local


@pytest.mark.parametrize(
    "space, per_row, is_strided",
    [
        (ELEMENT, True, True),
        (ROW, True, False),
        (COLUMN, False, False),
        (HEAD, False, False),
        (GROUP, False, False),
        (SAMPLE, False, True),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_a_space_is_of_rows_or_not_and_strided_or_not(space, per_row, is_strided):
    assert (space.per_row, space.is_strided) == (per_row, is_strided)


SPACES = (ELEMENT, ROW, COLUMN, HEAD, GROUP, SAMPLE)


def test_spaces_have_names_and_shapes_of_their_own() -> None:
    assert len({space.name for space in SPACES}) == len(SPACES)
    assert len({space.shape for space in SPACES}) == len(SPACES)


@pytest.mark.parametrize(
    "fields, statistic, factor, launch",
    [
        ({}, "x.shape[:-1]", "(*x.shape[:-1], 1)", "(programs,)"),
        (HEADS, "x.shape[:-1]", "(*x.shape[:-1], 1)", "(programs, n_groups)"),
        (GROUPS, "(*x.shape[:-1], n_groups)", None, "(programs, n_groups)"),
        (SAMPLED, "x.shape[:-1]", "(*x.shape[:-1], 1)", "(programs * n_samples,)"),
        (
            CHANNEL,
            "(x.shape[0], *x.shape[2:])",
            "(x.shape[0], 1, *x.shape[2:])",
            "(programs * n_samples,)",
        ),
    ],
    ids=str,
)
def test_the_host_makes_statistics_of_the_shape_of_rows(
    fields, statistic, factor, launch
) -> None:
    made = shapes(plan(make(**fields)))
    assert made.statistic == statistic
    assert factor in (None, made.factor)
    assert made.launch_grid == launch


@pytest.mark.parametrize("fields", [{}, HEADS, GROUPS, SAMPLED, CHANNEL], ids=str)
def test_the_opposite_of_empty_is_filled(fields) -> None:
    made = shapes(plan(make(**fields)))
    for n_rows, n_samples in ((0, 1), (1, 0), (3, 2)):
        known = {"n_rows": n_rows, "n_samples": n_samples}
        assert eval(made.is_empty, known) != eval(made.is_filled, known)


def test_rows_are_those_of_a_sample_only_where_a_kernel_asks_for_samples() -> None:
    assert shapes(plan(make())).division == ()
    assert shapes(plan(make(**CHANNEL))).division == ()  # planes say it themselves
    made = shapes(plan(make(**SAMPLED)))
    assert made.division == ("n_rows //= n_samples",)
    known: dict[str, Any] = {"n_rows": 0, "n_samples": 0, "max": max}
    exec("\n".join(made.division_of_any), known)
    assert known["n_rows"] == 0
