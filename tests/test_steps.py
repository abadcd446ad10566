"""Every gradient formula is the derivative of its step's value, by autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from formulas import evaluate, mutants

from normgen import dtypes, steps
from normgen.steps import Step

ROWS, COLUMNS = 5, 7
SHAPES = {"element": (ROWS, COLUMNS), "column": (COLUMNS,)}

#: name -> the step, and what it computes by another hand.
STEPS = {
    "SCALE": (steps.SCALE, lambda x, w: x.mul(w)),
    "SHIFT": (steps.SHIFT, lambda x, b: x.add(b)),
    "ROUNDED_SUM": (steps.ROUNDED_SUM, lambda x, r: r.add(x)),
    "UNROUNDED_SUM": (steps.UNROUNDED_SUM, lambda x, r: r.add(x)),
    "ADD_RESIDUAL": (steps.ADD_RESIDUAL, lambda x, r: r.add(x)),
    **{
        f"offset_scale({offset}, {precision})": (
            steps.offset_scale(offset, precision),
            lambda x, w, offset=offset: torch.addcmul(x * offset, x, w),
        )
        for offset in (1.0, -0.3)
        for precision in ("float32", "param")
    },
    "rounding": (steps.rounding("rounded", dtypes.of("x")), lambda x: x),
}


def case(step: Step) -> dict[str, torch.Tensor]:
    """Inputs of a step, away from 0 and 1, and the gradient of its output."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"x": "element", **{o.name: o.space for o in step.operands}}
    return {
        name: (
            torch.rand(SHAPES[space], generator=generator, dtype=torch.float64) + 1.3
        ).requires_grad_()
        for name, space in {**shapes, "dy": "element"}.items()
    }


def value_of(step: Step, given: dict[str, torch.Tensor]) -> torch.Tensor:
    helpers = {h.name: evaluate(h.value, given) for h in step.helpers}
    return evaluate(step.value, {**given, **helpers})


def is_right(step: Step, by_hand) -> bool:
    """Whether value and gradients are those of ``by_hand``."""
    given = case(step)
    dy = given.pop("dy")
    expected = by_hand(**given)
    value = value_of(step, given)
    if value.shape != expected.shape or not torch.allclose(value, expected):
        return False
    wanted = torch.autograd.grad(expected, list(given.values()), dy)
    helpers = {h.name: evaluate(h.value, given) for h in step.helpers}
    for name, gradient in zip(given, wanted, strict=True):
        found = evaluate(step.grads[name], {**given, **helpers, "dy": dy})
        found = found.expand(ROWS, COLUMNS)
        if given[name].dim() == 1:
            found = found.sum(0)
        if not torch.allclose(found, gradient):
            return False
    return True


def wrong_steps(step: Step):
    """(what is wrong, the step) for every mutant of every formula of a step."""
    known = ["x", *(o.name for o in step.operands), *(h.name for h in step.helpers)]
    for wrong in mutants(step.value, known):
        yield wrong, replace(step, value=wrong)
    for name, formula in step.grads.items():
        for wrong in mutants(formula, [*known, "dy"]):
            yield f"d{name} = {wrong}", replace(step, grads={**step.grads, name: wrong})
    for helper in step.helpers:
        for wrong in mutants(helper.value, ("x", "w")):
            changed = replace(helper, value=wrong)
            yield f"{helper.name} = {wrong}", replace(step, helpers=(changed,))


def test_every_step_of_the_module_is_here() -> None:
    known = [step for step, _ in STEPS.values()]
    found = [value for value in vars(steps).values() if isinstance(value, Step)]
    assert found
    assert all(step in known for step in found)


@pytest.mark.parametrize("name", STEPS)
def test_value_and_gradients_are_right(name: str) -> None:
    assert is_right(*STEPS[name])


@pytest.mark.parametrize("name", STEPS)
def test_every_wrong_formula_is_noticed(name: str) -> None:
    step, by_hand = STEPS[name]
    wrong = list(wrong_steps(step))
    assert wrong
    survivors = [text for text, mutant in wrong if is_right(mutant, by_hand)]
    assert not survivors


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_one_gradient_per_input(name: str) -> None:
    step, _ = STEPS[name]
    assert set(step.grads) == {"x", *(operand.name for operand in step.operands)}


@pytest.mark.parametrize("name", STEPS)
def test_the_reference_of_a_helper_is_its_value(name: str) -> None:
    step, _ = STEPS[name]
    given = case(step)
    for helper in step.helpers:
        eager = evaluate(helper.reference, {**given, "compute": torch.float64})
        assert torch.equal(eager, evaluate(helper.value, given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_offset_is_added_in_the_precision_asked_for(dtype: torch.dtype) -> None:
    w = torch.tensor([2.0**-12, 0.3], dtype=dtype)
    for precision, expected in (("float32", torch.float32), ("param", dtype)):
        (gain,) = steps.offset_scale(1.0, precision).helpers
        eager = evaluate(gain.reference, {"w": w, "compute": torch.float32})
        assert eager.dtype == expected
        assert gain.rounds_to == ("w" if precision == "param" else None)
        kernel = evaluate(gain.value, {"w": w.float()})
        assert torch.equal(kernel.to(eager.dtype), eager)


def test_only_what_is_rounded_and_stored_is_replayed() -> None:
    assert steps.ROUNDED_SUM.replayed
    assert not steps.UNROUNDED_SUM.replayed
    assert steps.UNROUNDED_SUM.returned
    for step, _ in STEPS.values():
        assert step.returned or not step.replayed
