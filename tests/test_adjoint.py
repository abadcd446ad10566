"""The gradients of whole norms: named, gathered, and those of autograd."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import test_statistics
import torch
from formulas import evaluate, mutants
from renderings import every_norm
from support.build import make
from test_statistics import reduced
from test_steps import TORCH

from normgen import graph
from normgen.adjoint import Adjoint, differentiate
from normgen.expr import is_name, names
from normgen.graph import Graph, Line
from normgen.notation import FUNCTIONS
from normgen.spaces import COLUMN, ELEMENT, GROUP, HEAD, ROW, SAMPLE, Space
from normgen.spec import Norm
from normgen.statistics import Reduction

#: x is [samples, rows, heads or groups, columns]
SAMPLES, ROWS, GROUPS, COLUMNS = 2, 3, 2, 9
EPS = 0.03

NORMS = every_norm()
EVERYTHING = {
    "variant": "layer_norm",
    "affine.bias": True,
    "affine.weight_offset": 1.0,
}


def shape_of(space: Space, grouped: bool) -> tuple[int, ...]:
    """A tensor of this space; whole rows are all groups of columns, where there are."""
    groups = GROUPS if grouped else 1
    return {
        ELEMENT: (SAMPLES, ROWS, GROUPS, COLUMNS),
        ROW: (SAMPLES, ROWS, GROUPS, 1),
        COLUMN: (groups, COLUMNS),
        HEAD: (GROUPS, COLUMNS),
        GROUP: (COLUMNS,),
        SAMPLE: (SAMPLES, 1, groups, COLUMNS),
    }[space]


def tensors_of(norm: Norm, built: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs and the gradients of results; rows of different scale."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-0.7, 0.6, SAMPLES * ROWS * GROUPS, dtype=torch.float64)
    scale = scale.view(SAMPLES, ROWS, GROUPS, 1)
    spaces = {**built.tensors, **{f"d{t}": s for t, s in built.spaces.items()}}
    made = {}
    for name, space in spaces.items():
        shape = shape_of(space, norm.group_size is not None)
        value = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.6
        made[name] = value * scale if space == ELEMENT else value
    return made


def eps_of(norm: Norm) -> float:
    return EPS if norm.eps == "argument" else norm.eps


def affine(norm: Norm, given: dict, x: torch.Tensor, suffix: str = "") -> torch.Tensor:
    if norm.has_weight and norm.affine.position != "before":
        x = x * (norm.affine.weight_offset + given[f"w{suffix}"])
    return x + given[f"b{suffix}"] if norm.affine.bias else x


def modulated(norm: Norm, given: dict, x: torch.Tensor, suffix: str) -> torch.Tensor:
    assert norm.modulation is not None
    if norm.modulation.operands != "shift":
        scale = given[f"s{suffix}"]
        x = (
            x
            * {
                "one_plus": lambda: scale + 1,
                "plain": lambda: scale,
                "sigmoid": lambda: torch.sigmoid(scale),
            }[norm.modulation.factor]()
        )
    return x if norm.modulation.operands == "scale" else x + given[f"t{suffix}"]


def added(norm: Norm, given: dict, branch: torch.Tensor) -> torch.Tensor:
    """The sum of the residual and a branch, both scaled."""
    scale = norm.branch_scale
    if scale is not None and scale.per is None:
        branch = branch * scale.constant
    elif scale is not None:
        factor = given["alpha"]
        branch = branch * (torch.tanh(factor) if scale.activation == "tanh" else factor)
    carried = 1.0 if norm.residual_scale is None else norm.residual_scale
    return given["r"] * carried + branch


def by_hand(norm: Norm, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The results of a norm without any rounding, from the fields of its spec."""
    row, made = given["x"], {}
    if norm.residual == "pre_add":
        made["h"] = row = added(norm, given, row)
    if norm.affine.position == "before":
        row = row * (norm.affine.weight_offset + given["w"])
    if norm.gate is not None and norm.gate.position == "before":
        row = row * TORCH[norm.gate.activation](given["gate"])
    x_hat, factor = test_statistics.by_hand(norm, row, eps_of(norm))
    if norm.output == "factor":
        return {"factor": factor}
    if norm.scale is not None:
        root = norm.scale == "sqrt_hidden_size"
        x_hat = x_hat * (COLUMNS**0.5 if root else norm.scale)
    y = affine(norm, given, x_hat)
    if norm.second_affine:
        return {"y": y, "y2": affine(norm, given, x_hat, "2"), **made}
    if norm.modulation is not None and norm.modulation.second:
        second = modulated(norm, given, y, "2")
        return {"y": modulated(norm, given, y, ""), "y2": second, **made}
    if norm.modulation is not None:
        y = modulated(norm, given, y, "")
    if norm.gate is not None and norm.gate.position == "after":
        y = y * TORCH[norm.gate.activation](given["gate"])
    if norm.post_activation != "none":
        y = TORCH[norm.post_activation](y)
    if norm.residual == "post_add":
        y = added(norm, given, y)
    return {"y": y, **made}


def run(
    lines: Iterable[Line],
    means: Iterable[Reduction],
    known: dict[str, Any],
    shapes: dict[str, torch.Size],
) -> None:
    """Carries out lines, and each reduction as soon as its term is there."""
    waiting = list(means)
    for line in [*lines, None]:
        while waiting and names(waiting[0].term) - {*FUNCTIONS} <= set(known):
            mean = waiting.pop(0)
            known[mean.name] = reduced(mean, known, "torch")
        if line is not None:
            value = evaluate(line.formula, known)
            if line.accumulates:
                value = value.expand(shape_of(ELEMENT, False))
                value = value.sum_to_size(shapes[line.target])
            known[line.target] = value
    assert not waiting


def at_hand(given: dict[str, torch.Tensor]) -> dict[str, Any]:
    cols = torch.arange(COLUMNS)
    sizes = {"N": COLUMNS, "root_n": COLUMNS**0.5}
    return {**given, **sizes, "mask": cols >= 0, "cols": cols, "eps": EPS}


def gradients(built: Graph, adjoint: Adjoint, given: dict) -> dict[str, torch.Tensor]:
    known = at_hand(given)
    shapes = {f"d{name}": value.shape for name, value in given.items()}
    run(built.lines, built.means, known, shapes)
    run(adjoint.lines, adjoint.means, known, shapes)
    return {t: known[adjoint.aliases.get(t, f"d{t}")] for t in built.tensors}


def is_right(norm: Norm, adjoint: Adjoint) -> bool:
    built = graph.build(norm)
    given = tensors_of(norm, built)
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


def fails(norm: Norm, adjoint: Adjoint) -> bool:
    try:
        return not is_right(norm, adjoint)
    except (TypeError, AttributeError, RuntimeError):
        return True  # a number where a tensor should be: torch itself notices


@pytest.mark.parametrize("name", NORMS)
def test_the_forward_lines_are_the_norm(name: str) -> None:
    norm = NORMS[name]
    built = graph.build(norm)
    known = at_hand(tensors_of(norm, built))
    expected = by_hand(norm, known)
    run(built.lines, built.means, known, {})
    assert list(built.results) == list(expected)
    for tensor, value in expected.items():
        assert torch.allclose(known[built.results[tensor]], value), tensor


@pytest.mark.parametrize("name", NORMS)
def test_all_gradients_are_those_of_autograd(name: str) -> None:
    norm = NORMS[name]
    assert is_right(norm, differentiate(graph.build(norm)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {**EVERYTHING, "residual": "pre_add"},
        {**EVERYTHING, "residual": "post_add", "eps_placement": "outside_sqrt"},
        {**EVERYTHING, "second_affine": True, "residual": "pre_add"},
        {"gate.position": "before", "affine.position": "before"},
        {"modulation.second": True, "modulation.factor": "sigmoid"},
        {"residual": "pre_add", "branch_scale.per": "sample", "residual_scale": 0.5}
        | {"branch_scale.activation": "tanh"},
        {"affine.weight": "per_head", "post_activation": "tanh"},
    ],
    ids=str,
)
def test_any_wrong_line_of_a_whole_adjoint_is_noticed(fields: dict[str, Any]) -> None:
    norm = make(**{"eps": 0.05, **fields})
    adjoint = differentiate(graph.build(norm))
    survivors = []
    for i, line in enumerate(adjoint.lines):
        for wrong in mutants(line.formula, ["x", "x_hat", "rstd", *adjoint.tensors]):
            changed = replace(line, formula=wrong)
            lines = (*adjoint.lines[:i], changed, *adjoint.lines[i + 1 :])
            if not fails(norm, replace(adjoint, lines=lines)):
                survivors.append(f"{line.target} = {wrong}")
    # which only a row of zeros tells apart: test_statistics has one
    assert set(survivors) <= {"share = 1.0 - 0.05 * rstd"}


def test_the_gradient_of_a_returned_sum_is_added_once() -> None:
    adjoint = differentiate(graph.build(make(residual="pre_add")))
    assert adjoint.tensors == {"dy": ELEMENT, "dh": ELEMENT}
    (dx,) = (line for line in adjoint.lines if line.target == "dx")
    assert dx.formula == "dh + (dx_hat - x_hat * projection) * rstd"
    assert sum("dh" in line.uses for line in adjoint.lines) == 1


def test_a_second_result_adds_its_gradient_to_that_of_the_value_it_is_made_of() -> None:
    adjoint = differentiate(graph.build(make(second_affine=True)))
    assert adjoint.tensors == {"dy": ELEMENT, "dy2": ELEMENT}
    (dx_hat,) = (line for line in adjoint.lines if line.target == "dx_hat")
    assert sorted(dx_hat.formula.split(" + ")) == ["dy * w", "dy2 * w2"]
    twice = {"modulation.second": True, "affine.bias": True}
    adjoint = differentiate(graph.build(make(**twice)))
    (dshifted,) = (line for line in adjoint.lines if {"dy", "dy2"} <= line.uses)
    assert sorted(dshifted.formula.split(" + ")) == ["dy * factor", "dy2 * factor2"]


def test_two_results_that_are_one_value_add_their_gradients() -> None:
    """Without weights a second shift of the same value has the gradient of the sum."""
    fields = {"modulation.second": True, "modulation.operands": "shift"}
    adjoint = differentiate(graph.build(make(weight="none", **fields)))
    (dx_hat,) = (line for line in adjoint.lines if {"dy", "dy2"} <= line.uses)
    assert sorted(dx_hat.formula.split(" + ")) == ["dy", "dy2"]


@pytest.mark.parametrize(
    "fields, aliases, gradients",
    [
        ({"residual": "pre_add"}, {"r": "dx"}, ["dx", "dw"]),
        ({"residual": "post_add"}, {"r": "dy"}, ["dx", "dw"]),
        ({"variant": "layer_norm", "affine.bias": True}, {}, ["dx", "dw", "db"]),
        ({"weight": "none"}, {}, ["dx"]),
        ({"modulation.per": "row"}, {"t": "dy"}, ["dx", "dw", "ds"]),
        (
            {"modulation.per": "row", "modulation.second": True},
            {"t": "dy", "t2": "dy2"},
            ["dx", "dw", "ds", "ds2"],
        ),
        ({"modulation.per": "sample"}, {}, ["dx", "dw", "ds", "dt"]),
        ({"residual": "post_add", "residual_scale": 0.5}, {}, ["dx", "dw", "dr"]),
        (
            {"residual": "pre_add", "branch_scale.constant": 0.5},
            {},
            ["dx", "dw", "dr"],
        ),
        (
            {"modulation.per": "row", "post_activation": "tanh"},
            {},
            ["dx", "dw", "ds", "dt"],
        ),
    ],
    ids=str,
)
def test_a_gradient_that_equals_another_has_no_line(
    fields: dict[str, Any], aliases: dict[str, str], gradients: list[str]
) -> None:
    adjoint = differentiate(graph.build(make(**fields)))
    assert adjoint.aliases == aliases
    assert list(adjoint.gradients) == gradients
    assert not {f"d{t}" for t in aliases} & {line.target for line in adjoint.lines}


@pytest.mark.parametrize("name", NORMS)
def test_every_gradient_has_one_line_or_is_an_alias_of_what_is_in_memory(
    name: str,
) -> None:
    built = graph.build(NORMS[name])
    adjoint = differentiate(built)
    targets = [line.target for line in adjoint.lines]
    assert len(targets) == len(set(targets))
    assert set(adjoint.gradients) <= set(targets)
    assert not set(targets) & set(adjoint.tensors)
    assert set(adjoint.aliases.values()) <= {*adjoint.gradients, *adjoint.tensors}
    for tensor in built.tensors:
        assert (f"d{tensor}" in adjoint.gradients) != (tensor in adjoint.aliases)
    made = {line.target for line in built.lines} | {m.name for m in built.means}
    assert not made & set(targets)


@pytest.mark.parametrize("name", NORMS)
def test_every_line_reads_what_is_there_and_no_copy_is_made(name: str) -> None:
    built = graph.build(NORMS[name])
    adjoint = differentiate(built)
    made = {"mask", "cols", "eps", "N", "root_n", *FUNCTIONS}
    made |= {*built.tensors, *adjoint.tensors}
    made |= {line.target for line in built.lines} | {m.name for m in built.means}
    waiting = list(adjoint.means)
    for line in adjoint.lines:
        while waiting and names(waiting[0].term) <= made:
            made.add(waiting.pop(0).name)
        assert line.uses <= made, line
        stored = line.target in adjoint.gradients
        assert stored or not is_name(line.formula), line
        made.add(line.target)
    read = set().union(*(line.uses for line in adjoint.lines))
    read |= set().union(*(names(mean.term) for mean in adjoint.means))
    targets = {line.target for line in adjoint.lines}
    assert targets <= read | set(adjoint.gradients)


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_what_is_no_row_are_summed_over_rows_and_no_others(
    name: str,
) -> None:
    built = graph.build(NORMS[name])
    adjoint = differentiate(built)
    for line in adjoint.lines:
        space = built.tensors.get(line.target[1:])
        is_operand = space is not None and line.target in adjoint.gradients
        assert line.accumulates == (is_operand and space != ELEMENT), line
    for tensor, space in adjoint.gradients.items():
        assert built.tensors[tensor[1:]] == space


@pytest.mark.parametrize("fields", [{}, EVERYTHING], ids=str)
def test_a_cast_costs_the_backward_pass_nothing(fields: dict[str, Any]) -> None:
    """A rounding passes its gradient through: no line is made for it."""
    casts = ("rounding.input", "rounding.normalized", "rounding.affine")
    cast = {**fields, **dict.fromkeys(casts, "io")}
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
