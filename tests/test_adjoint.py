"""The gradients of whole norms: named, gathered, and those of autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from formulas import evaluate, mutants
from renderings import covering_norms, repository_norms
from support.build import make

from normgen import graph
from normgen.adjoint import Adjoint, differentiate
from normgen.expr import names
from normgen.graph import Graph
from normgen.spec import Norm

ROWS, COLUMNS = 4, 9
EPS = 0.03

NORMS = {**repository_norms(), **covering_norms()}
EVERYTHING = {"variant": "layer_norm", "bias": True, "weight_offset": 1.0}


def tensors_of(built: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs and the gradients of results; rows of different scale."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([[0.2], [1.0], [3.0], [0.5]], dtype=torch.float64)
    made = {}
    for name in (*built.tensors, *(f"d{t}" for t in built.results)):
        column = built.tensors.get(name) == "column"
        shape = (COLUMNS,) if column else (ROWS, COLUMNS)
        value = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.6
        made[name] = value if column else value * scale
    return made


def by_hand(norm: Norm, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The results of a norm without any rounding, from the fields of its spec."""
    eps = EPS if norm.eps == "argument" else norm.eps
    h = given["x"] + given["r"] if norm.residual == "pre_add" else given["x"]
    centred = h - h.mean(-1, keepdim=True) if norm.variant == "layer_norm" else h
    power = centred.square().mean(-1, keepdim=True)
    inside = norm.eps_placement == "inside_sqrt"
    y = centred / ((power + eps).sqrt() if inside else power.sqrt() + eps)
    if norm.has_weight:
        y = y * (norm.affine.weight_offset + given["w"])
    if norm.affine.bias:
        y = y + given["b"]
    if norm.residual == "post_add":
        y = y + given["r"]
    return {"y": y, **({"h": h} if norm.residual == "pre_add" else {})}


def run(lines, means, known: dict[str, torch.Tensor]) -> None:
    """Carries out lines, and each row mean as soon as its term is there."""
    waiting = list(means)
    for line in [*lines, None]:
        while waiting and names(waiting[0].term) - {"tl"} <= set(known):
            mean = waiting.pop(0)
            known[mean.name] = evaluate(mean.term, known).mean(-1, keepdim=True)
        if line is not None:
            value = evaluate(line.formula, known)
            known[line.target] = value.sum(0) if line.accumulates else value
    assert not waiting


def gradients(built: Graph, adjoint: Adjoint, given: dict) -> dict[str, torch.Tensor]:
    known = {**given, "mask": torch.tensor(True), "eps": EPS}
    run(built.lines, built.means, known)
    run(adjoint.lines, adjoint.means, known)
    return {t: known[adjoint.aliases.get(t, f"d{t}")] for t in built.tensors}


def is_right(norm: Norm, adjoint: Adjoint) -> bool:
    built = graph.build(norm)
    given = tensors_of(built)
    inputs = {t: given[t].requires_grad_() for t in built.tensors}
    results = by_hand(norm, inputs)
    wanted = torch.autograd.grad(
        list(results.values()),
        list(inputs.values()),
        [given[f"d{t}"] for t in results],
    )
    plain = {name: value.detach() for name, value in given.items()}
    found = gradients(built, adjoint, plain)
    return all(
        found[t].shape == gradient.shape and torch.allclose(found[t], gradient)
        for t, gradient in zip(inputs, wanted, strict=True)
    )


@pytest.mark.parametrize("name", NORMS)
def test_the_forward_lines_are_the_norm(name) -> None:
    norm = NORMS[name]
    built = graph.build(norm)
    known = {**tensors_of(built), "mask": torch.tensor(True), "eps": EPS}
    expected = by_hand(norm, known)
    run(built.lines, built.means, known)
    assert list(built.results) == list(expected)
    for tensor, value in expected.items():
        assert torch.allclose(known[built.results[tensor]], value), tensor


@pytest.mark.parametrize("name", NORMS)
def test_all_gradients_are_those_of_autograd(name) -> None:
    norm = NORMS[name]
    assert is_right(norm, differentiate(graph.build(norm)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {**EVERYTHING, "residual": "pre_add"},
        {**EVERYTHING, "residual": "post_add", "eps_placement": "outside_sqrt"},
    ],
    ids=str,
)
def test_any_wrong_line_of_a_whole_adjoint_is_noticed(fields) -> None:
    norm = make(**{"eps": 0.05, **fields})
    adjoint = differentiate(graph.build(norm))
    survivors = []
    for i, line in enumerate(adjoint.lines):
        for wrong in mutants(line.formula, ["x", "x_hat", "rstd", *adjoint.tensors]):
            changed = replace(line, formula=wrong)
            lines = (*adjoint.lines[:i], changed, *adjoint.lines[i + 1 :])
            if is_right(norm, replace(adjoint, lines=lines)):
                survivors.append(f"{line.target} = {wrong}")
    # which only a row of zeros tells apart: test_statistics has one
    assert set(survivors) <= {"slope = projection / (1.0 - 0.05 * rstd)"}


def test_the_gradient_of_a_returned_sum_is_added_once() -> None:
    adjoint = differentiate(graph.build(make(residual="pre_add")))
    assert adjoint.tensors == {"dy": "element", "dh": "element"}
    (dx,) = (line for line in adjoint.lines if line.target == "dx")
    assert dx.formula == "dh + (dx_hat - x_hat * projection) * rstd"
    assert sum("dh" in line.uses for line in adjoint.lines) == 1


@pytest.mark.parametrize(
    "fields, aliases, gradients",
    [
        ({"residual": "pre_add"}, {"r": "dx"}, ["dx", "dw"]),
        ({"residual": "post_add"}, {"r": "dy"}, ["dx", "dw"]),
        ({"variant": "layer_norm", "bias": True}, {}, ["dx", "dw", "db"]),
        ({"weight": "none"}, {}, ["dx"]),
    ],
    ids=str,
)
def test_a_gradient_that_equals_another_has_no_line(fields, aliases, gradients):
    adjoint = differentiate(graph.build(make(**fields)))
    assert adjoint.aliases == aliases
    assert list(adjoint.gradients) == gradients
    targets = [line.target for line in adjoint.lines]
    assert not {f"d{tensor}" for tensor in aliases} & set(targets)
    assert len(targets) == len(set(targets))


@pytest.mark.parametrize("name", NORMS)
def test_column_gradients_are_summed_over_rows_and_no_others(name) -> None:
    built = graph.build(NORMS[name])
    adjoint = differentiate(built)
    for line in adjoint.lines:
        column = built.tensors.get(line.target[1:]) == "column"
        assert line.accumulates == column, line
    for tensor, space in adjoint.gradients.items():
        assert built.tensors[tensor[1:]] == space


@pytest.mark.parametrize("fields", [{}, EVERYTHING], ids=str)
def test_a_cast_costs_the_backward_pass_nothing(fields) -> None:
    """A rounding passes its gradient through: no line is made for it."""
    cast = {**fields, "normalized": "io", "affine_rounding": "io"}
    count = [len(differentiate(graph.build(make(**f))).lines) for f in (fields, cast)]
    assert count[0] == count[1]
    (dw,) = (
        line
        for line in differentiate(graph.build(make(**cast))).lines
        if line.target == "dw"
    )
    assert dw.formula == "dy * rounded"  # what the affine part saw


def test_no_gradient_is_rounded_on_its_way() -> None:
    for norm in NORMS.values():
        adjoint = differentiate(graph.build(norm))
        assert {line.dtype for line in adjoint.lines} == {frozenset({"float32"})}
