"""Symbolic dtypes say what torch's promotion returns, whatever dtypes tensors have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from renderings import every_norm

from normgen import graph
from normgen.dtypes import CONCRETE, FLOAT32, in_torch, of, promote, store_rounds_alike

TORCH = {name: getattr(torch, name) for name in CONCRETE}
ATOMS = (*CONCRETE, "x", "w", "b")
SYMBOLS = sorted(
    {
        promote(*map(of, some))
        for n in (1, 2, 3)
        for some in itertools.product(ATOMS, repeat=n)
    },
    key=sorted,
)
ASSIGNMENTS = [
    dict(zip("xwb", dtypes, strict=True))
    for dtypes in itertools.product(TORCH.values(), repeat=3)
]


def concrete(dtype, assignment):
    """The torch dtype that a symbol stands for, by torch's own promotion."""
    known = [{**TORCH, **assignment}[atom] for atom in dtype]
    result = known[0]
    for other in known[1:]:
        result = torch.promote_types(result, other)
    return result


@pytest.mark.parametrize(
    "names", [*itertools.product(CONCRETE, repeat=3)], ids=" ".join
)
def test_promotion_is_that_of_torch(names):
    expected = TORCH[names[0]]
    for name in names[1:]:
        expected = torch.promote_types(expected, TORCH[name])
    (atom,) = promote(*map(of, names))
    assert TORCH[atom] == expected


def test_promotion_of_symbols_is_that_of_torch_for_every_assignment():
    for one, other in itertools.product(SYMBOLS, repeat=2):
        for assignment in ASSIGNMENTS:
            assert concrete(promote(one, other), assignment) == torch.promote_types(
                concrete(one, assignment), concrete(other, assignment)
            ), (one, other, assignment)


def test_float32_is_always_written_as_itself():
    assert [symbol for symbol in SYMBOLS if "float32" in symbol] == [FLOAT32]
    assert promote(of("bfloat16"), of("float16"), of("x")) == FLOAT32


def samples():
    """float32 values about the roundings of both half precisions, ties included."""
    torch.manual_seed(0)
    powers = torch.arange(-150, 128, dtype=torch.float64).exp2()
    steps = 1 + torch.arange(0, 2**13, 37, dtype=torch.float64) / 2**13
    ties = torch.tensor([1 + 2**-8, 1 + 2**-9, 1 + 2**-11, 1 + 2**-12, 1 - 2**-9])
    near = ties.double()[:, None] * (1 + torch.tensor([-1.0, 0, 1]).double() * 2**-23)
    mantissas = torch.cat([steps, near.flatten(), torch.rand(64).double() + 1])
    grid = (powers[:, None] * mantissas).flatten().float()
    edges = torch.tensor([0.0, 65504, 65519, 65520, 3.3961e38, 6e-8, 1e-8, 2**-25])
    return torch.cat([grid, -grid, edges, torch.tensor([torch.inf, torch.nan])])


def roundings_agree(values, first, stored):
    """Whether rounding to ``first`` on the way to ``stored`` changes no bit."""
    once, twice = values.to(stored), values.to(first).float().to(stored)
    return torch.equal(torch.nan_to_num(once), torch.nan_to_num(twice))


@pytest.fixture(scope="module")
def agreement():
    """(first, stored) -> whether the roundings agree, on real values."""
    values = samples()
    return {
        (first, stored): roundings_agree(values, first, stored)
        for first, stored in itertools.product(TORCH.values(), repeat=2)
    }


def test_the_samples_tell_every_pair_of_roundings_apart(agreement):
    for (first, stored), agree in agreement.items():
        assert agree == (first in (stored, torch.float32)), (first, stored)


def test_a_store_rounds_alike_exactly_where_no_assignment_shows_a_difference(agreement):
    for value, stored in itertools.product(SYMBOLS, repeat=2):
        differs = [
            assignment
            for assignment in ASSIGNMENTS
            if not agreement[concrete(value, assignment), concrete(stored, assignment)]
        ]
        assert store_rounds_alike(value, stored) == (not differs), (value, stored)


def test_a_dtype_in_torch_is_what_it_stands_for():
    for symbol in SYMBOLS:
        for assignment in ASSIGNMENTS:
            text = in_torch(symbol, {atom: f"{atom}_dtype" for atom in "xwb"})
            given = {f"{atom}_dtype": dtype for atom, dtype in assignment.items()}
            assert eval(text, {"torch": torch}, given) == concrete(symbol, assignment)


def test_a_dtype_in_torch_is_the_same_text_in_every_process():
    atoms = {"x": "x.dtype", "w": "weight.dtype", "b": "bias.dtype"}
    text = "torch.promote_types(x.dtype, weight.dtype)"
    assert in_torch(frozenset("xw"), atoms) == text
    assert in_torch(frozenset("xwb"), atoms) == (
        f"torch.promote_types({text}, bias.dtype)"
    )


def assignments(*dtypes: frozenset[str]) -> Iterator[dict[str, torch.dtype]]:
    """Every way of giving dtypes to the tensors that some symbols name."""
    atoms = sorted(frozenset[str]().union(*dtypes) - set(CONCRETE))
    for given in itertools.product(TORCH.values(), repeat=len(atoms)):
        yield dict(zip(atoms, given, strict=True))


@pytest.mark.parametrize("name", every_norm())
def test_dropped_roundings_of_a_norm_change_no_bit(name, agreement):
    """A node left unrounded is followed by roundings alone, which give the same."""
    built = graph.build(every_norm()[name])
    for node in built.nodes:
        if node.rounded:
            continue
        readers = [after for after in built.nodes if after.source == node.out]
        assert all(after.step.is_cast for after in readers), "a reader computes"
        stored = [built.dtypes[t] for t, v in built.results.items() if v == node.out]
        for dtype in (*stored, *(after.dtype for after in readers)):
            for given in assignments(node.dtype, dtype):
                pair = concrete(node.dtype, given), concrete(dtype, given)
                assert agreement[pair], (node.out, given)
