"""Activations are those of torch, and their slopes the derivatives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from formulas import LANGUAGES, evaluate, mutants
from test_steps import TORCH

from normgen.activations import ACTIVATIONS, Activation
from normgen.expr import names
from normgen.notation import FUNCTIONS
from normgen.spec import Norm

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def points(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Near 0, on both sides of it, and far out; 0 itself is a kink of relu."""
    outside = torch.logspace(-6, 1.3, 60, dtype=torch.float64)
    return torch.cat([-outside, outside]).to(dtype)


def known_of(act: Activation, z: torch.Tensor, language: str) -> dict:
    known = {"z": z}
    for name, formula in act.shared.items():
        known[name] = evaluate(formula, known, language)
    return known


def is_right(name: str, act: Activation) -> bool:
    z = points().requires_grad_()
    expected = TORCH[name](z)
    (slope,) = torch.autograd.grad(expected.sum(), z)
    for language in LANGUAGES:
        known = known_of(act, z.detach(), language)
        for formula, wanted in ((act.value, expected), (act.slope, slope)):
            found = evaluate(formula, known, language).double()
            if not torch.allclose(found, wanted, rtol=1e-12, atol=1e-14):
                return False
    return True


def fails(name: str, act: Activation) -> bool:
    try:
        return not is_right(name, act)
    except (NameError, TypeError, AttributeError, RuntimeError, IndexError):
        return True


def test_every_activation_of_a_spec_has_formulas() -> None:
    asked = set(Norm.model_fields["post_activation"].annotation.__args__)
    assert asked - {"none"} == set(ACTIVATIONS) == set(TORCH)


@every_activation
def test_value_and_slope_are_those_of_torch(name: str) -> None:
    assert is_right(name, ACTIVATIONS[name])


#: A sigmoid and a tanh by the name of the value that they share with their slopes.
EQUIVALENT = ("sigma", "bend")


@every_activation
def test_every_wrong_formula_is_noticed(name: str) -> None:
    act = ACTIVATIONS[name]
    known, survivors = ["z", *act.shared], []
    for wrong in mutants(act.value, known):
        if wrong not in EQUIVALENT and not fails(name, replace(act, value=wrong)):
            survivors.append(wrong)
    for wrong in mutants(act.slope, known):
        if not fails(name, replace(act, slope=wrong)):
            survivors.append(wrong)
    for i, (target, formula) in enumerate(act.shared.items()):
        for wrong in mutants(formula, known[: i + 1]):
            changed = replace(act, shared={**act.shared, target: wrong})
            if not fails(name, changed):
                survivors.append(f"{target} = {wrong}")
    assert not survivors


@every_activation
def test_what_is_shared_is_read(name: str) -> None:
    act = ACTIVATIONS[name]
    read = names(act.value) | names(act.slope)
    read = read.union(*map(names, act.shared.values()))
    assert set(act.shared) <= read
    assert read - {"z", *act.shared} <= set(FUNCTIONS)


@every_activation
def test_zero_stays_zero_or_the_activation_is_none_of_those(name: str) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    known = known_of(ACTIVATIONS[name], zero, "triton")
    value = evaluate(ACTIVATIONS[name].value, known, "triton")
    assert torch.equal(value, TORCH[name](zero))


@every_activation
def test_in_float32_a_kernel_is_near_torch(name: str) -> None:
    z = points(torch.float32)
    act = ACTIVATIONS[name]
    exact = TORCH[name](z.double())
    found = evaluate(act.value, known_of(act, z, "triton"), "triton")
    assert found.isfinite().all()
    # of values, not of their tails: 1 + tanh and 1 + erf cancel where they vanish
    bound = 8 * 2.0**-24 * torch.maximum(exact.abs(), z.double().abs())
    assert ((found - exact).abs() <= bound.clamp(min=2.0**-22)).all()
