"""The launch tables of a generated file, and the lines that read them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from renderings import every_norm
from support.build import make

from normgen.fields import LARGEST_CHANNEL_ROW, LARGEST_REGISTER_ROW
from normgen.launch import FEW_ROWS
from normgen.plan import plan
from normgen.tables import lookup, tables, tiles

NORMS = every_norm()
ASKED = ("auto", "row", "rows", "loop")
TRITON = SimpleNamespace(
    next_power_of_2=lambda n: 1 << (n - 1).bit_length(), cdiv=lambda a, b: -(-a // b)
)
SAMPLED = sorted(
    {
        *range(1, 300),
        *range(301, 200_001, 1231),
        *(2**n + d for n in range(2, 18) for d in (-1, 0, 1)),
        200_000,
    }
)


def read_tables(made) -> dict[str, dict]:
    """The tables of a plan, as Python reads them."""
    return {
        table.name: eval(
            "{" + "\n".join(e for s in table.sections for e in s.entries) + "}"
        )
        for table in tables(made)
    }


def looked_up(made, direction: str, hidden_size: int, n_rows: int = 1000) -> dict:
    """What the emitted lines find for a row length."""
    known = {**read_tables(made), "triton": TRITON, "max": max, "min": min}
    known |= {"hidden_size": hidden_size, "n_rows": n_rows, "n_samples": 1}
    exec("\n".join(lookup(made, direction)), known)
    return known["options"]


def branch_of(made, direction: str, hidden_size: int):
    """The branch whose kernel the emitted code launches."""
    return next(
        branch
        for branch in made.branches(direction)
        if branch.largest is None or hidden_size <= branch.largest
    )


@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_dynamic_norm_finds_constants_for_every_length(direction, asked, variant):
    made = plan(make(variant=variant, strategy=asked))
    known = {**read_tables(made), "triton": TRITON, "max": max, "min": min}
    code = compile("\n".join(lookup(made, direction)), "lookup", "exec")
    for length in SAMPLED:
        if length > LARGEST_REGISTER_ROW.get(asked, length):
            continue
        exec(code, known, found := {"hidden_size": length, "n_rows": 1})
        strategy = branch_of(made, direction, length).strategy
        options = found["options"]
        assert {*options} - {"num_warps"} == set(strategy.constants), length
        assert strategy.name == "loop" or options["BLOCK_SIZE"] >= length


@pytest.mark.parametrize("name", NORMS)
def test_every_listed_length_finds_the_constants_of_its_kernel(name: str) -> None:
    made = plan(NORMS[name])
    for direction in ("forward", "backward") if made.norm.backward else ("forward",):
        for length in made.norm.lengths:
            for n_rows in (1, FEW_ROWS, FEW_ROWS + 1):
                options = looked_up(made, direction, length, n_rows)
                strategy = branch_of(made, direction, length).strategy
                assert {*options} - {"num_warps"} == set(strategy.constants)
                columns = made.norm.group_size or length
                assert strategy.name == "loop" or options["BLOCK_SIZE"] >= columns


def test_forward_constants_depend_on_the_length_and_on_nothing_else() -> None:
    """Whatever else a norm is, and whichever lengths it lists beside."""
    seen: dict = {}
    for norm in NORMS.values():
        made = plan(norm)
        if not norm.batch_invariant:
            continue
        for length in norm.lengths:
            columns = norm.group_size or length
            key = (columns, norm.strategy, len(made.graph.means), norm.axis)
            options = looked_up(made, "forward", length)
            assert seen.setdefault(key, options) == options, key
    assert len(seen) > 40


@pytest.mark.parametrize("hidden_size", ["dynamic", (128, 4096)])
def test_the_number_of_rows_is_looked_at_only_where_the_spec_allows_it(hidden_size):
    fixed = plan(make(hidden_size=hidden_size))
    free = plan(make(hidden_size=hidden_size, batch_invariant=False))
    assert "n_rows" not in "\n".join(lookup(fixed, "forward"))
    assert "n_rows" not in "\n".join(lookup(free, "backward"))
    assert f"if n_rows <= {FEW_ROWS}:" in lookup(free, "forward")
    for length in (128, 4096):
        for n_rows in (1, FEW_ROWS, FEW_ROWS + 1):
            found = looked_up(free, "forward", length, n_rows)
            many = looked_up(fixed, "forward", length)
            assert (found == many) == (n_rows > FEW_ROWS)


@pytest.mark.parametrize("name", NORMS)
def test_a_table_lists_each_length_once_and_in_order(name: str) -> None:
    made = plan(NORMS[name])
    for table in tables(made):
        entries = [entry for section in table.sections for entry in section.entries]
        lengths = [int(entry.split(":")[0]) for entry in entries]
        assert lengths == sorted(set(lengths))
        assert list(read_tables(made)[table.name]) == lengths


def test_tables_are_named_after_the_norm_and_the_direction() -> None:
    names = [table.name for table in tables(plan(make(batch_invariant=False)))]
    assert names == [
        "_RMS_NORM_FORWARD",
        "_RMS_NORM_FORWARD_FEW_ROWS",
        "_RMS_NORM_BACKWARD",
    ]
    only = tables(plan(make(backward=False)))
    assert [table.name for table in only] == ["_RMS_NORM_FORWARD"]


@pytest.mark.parametrize("name", NORMS)
def test_the_grid_holds_all_rows_and_no_program_more(name: str) -> None:
    made = plan(NORMS[name])
    lengths = made.norm.lengths or (1, 100, 3000, 20_000)
    for length, n_rows in itertools.product(lengths, (1, 2, 63, 64, 65, 1000)):
        columns = made.norm.group_size or length
        if columns > LARGEST_REGISTER_ROW.get(made.norm.strategy, columns):
            continue
        if made.norm.axis == "channel" and length > LARGEST_CHANNEL_ROW:
            continue
        options = looked_up(made, "forward", length, n_rows)
        known = {"triton": TRITON, "options": options, "n_rows": n_rows, "n_samples": 1}
        programs = eval(tiles(made.forward_branches), known)
        rows = options.get("ROWS_PER_PROGRAM", 1)
        assert (programs - 1) * rows < n_rows <= programs * rows
