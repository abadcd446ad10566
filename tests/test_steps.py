"""Every gradient formula is the derivative of its step's value, by autograd."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from formulas import LANGUAGES, evaluate, mutants
from torch.nn import functional

from normgen import dtypes, steps
from normgen.activations import ACTIVATIONS
from normgen.expr import names, substitute
from normgen.spaces import COLUMN, ELEMENT, SAMPLE
from normgen.steps import WIDE, Operand, Step

ROWS, COLUMNS = 5, 7
TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
}
W = steps.WEIGHT


def offset(value: float, precision: str) -> Step:
    factor = steps.offset_factor("gain", value, W, precision)
    return steps.multiply("scaled", W, factor, precision=precision)


def cases() -> Iterator[tuple[str, Step, Callable[..., torch.Tensor]]]:
    """(name, the step, what it computes by another hand) of every builder."""
    for precision in ("param", "float32"):
        for value in (1.0, -0.3):
            yield (
                f"offset_factor({value}, {precision})",
                offset(value, precision),
                lambda x, w, value=value: torch.addcmul(x * value, x, w),
            )
        yield (
            f"multiply({precision})",
            steps.multiply("scaled", W, precision=precision),
            lambda x, w: x.mul(w),
        )
        yield (
            f"add({precision})",
            steps.add("shifted", steps.BIAS, precision),
            lambda x, b: x.add(b),
        )
        for act in ACTIVATIONS:
            yield (
                f"multiply_activated({act}, {precision})",
                steps.multiply_activated("gated", steps.GATE, "opened", act, precision),
                lambda x, gate, act=act: x.mul(TORCH[act](gate)),
            )
    for act in ACTIVATIONS:
        yield f"activate({act})", steps.activate(act), lambda x, act=act: TORCH[act](x)
    for scale in (None, 0.75):
        carried = 1.0 if scale is None else scale
        yield (
            f"add_residual({scale})",
            steps.add_residual("added", scale),
            lambda x, r, carried=carried: torch.add(x, r, alpha=carried),
        )
        for rounded in (True, False):
            yield (
                f"residual_sum({scale}, {rounded})",
                steps.residual_sum(scale, rounded),
                lambda x, r, carried=carried: torch.add(x, r, alpha=carried),
            )
    yield "rounding", steps.rounding("rounded", dtypes.of("x")), lambda x: x
    yield "times(number)", steps.times("sized", "-1.5"), lambda x: x.mul(-1.5)
    yield "times(root)", steps.times("sized", "root_n"), lambda x: x * COLUMNS**0.5
    for promotes in (WIDE, ("x", "w")):
        yield (
            f"weigh_factor{promotes}",
            steps.weigh_factor(W, promotes),
            lambda x, w: x.mul(w),
        )


STEPS = {name: (step, by_hand) for name, step, by_hand in cases()}
every_step = pytest.mark.parametrize("name", STEPS)


def case(step: Step) -> dict[str, torch.Tensor]:
    """Inputs of a step, away from 0 and 1 and of both signs, and its dy."""
    generator = torch.Generator().manual_seed(1)
    spaces = {"x": ELEMENT, **{o.name: o.space for o in step.operands}, "dy": ELEMENT}
    made = {}
    for name, space in spaces.items():
        shape = (ROWS, COLUMNS) if space == ELEMENT else (COLUMNS,)
        value = torch.rand(shape, generator=generator, dtype=torch.float64) + 1.3
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        made[name] = (value * sign).requires_grad_()
    return made


def known_by(
    step: Step, given: dict[str, torch.Tensor], language: str
) -> dict[str, torch.Tensor]:
    """The inputs, what a step may read of the norm, and its helpers in order."""
    rstd = torch.linspace(0.4, 2.5, ROWS, dtype=torch.float64)[:, None]
    known = {**given, "rstd": rstd, "numerator": given["x"] / rstd}
    known["root_n"] = COLUMNS**0.5
    for helper in step.helpers:
        known[helper.name] = evaluate(helper.value, known, language)
    return known


def is_right(step: Step, by_hand: Callable[..., torch.Tensor]) -> bool:
    """Whether value and gradients are those of ``by_hand``, in every language."""
    given = case(step)
    dy = given.pop("dy")
    expected = by_hand(**given)
    wanted = torch.autograd.grad(expected, list(given.values()), dy)
    plain = {name: value.detach() for name, value in given.items()}
    for language in LANGUAGES:
        known = known_by(step, plain, language)
        value = evaluate(step.value, known, language)
        if value.shape != expected.shape or not torch.allclose(value, expected):
            return False
        for name, gradient in zip(given, wanted, strict=True):
            found = evaluate(step.grads[name], {**known, "dy": dy}, language)
            found = found.expand(ROWS, COLUMNS)
            found = found.sum(0) if given[name].dim() == 1 else found
            if not torch.allclose(found, gradient):
                return False
    return True


def wrong_steps(step: Step) -> Iterator[tuple[str, Step]]:
    """(what is wrong, the step) for every mutant of every formula of a step."""
    known = ["x", *(o.name for o in step.operands), *(h.name for h in step.helpers)]
    if "numerator" in step.value:
        known += ["numerator", "rstd"]
    for wrong in mutants(step.value, known):
        yield wrong, replace(step, value=wrong)
    for name, formula in step.grads.items():
        for wrong in mutants(formula, [*known, "dy"]):
            yield f"d{name} = {wrong}", replace(step, grads={**step.grads, name: wrong})
    for i, helper in enumerate(step.helpers):
        for wrong in mutants(helper.value, known[: 1 + len(step.operands) + i]):
            changed = replace(helper, value=wrong)
            made = (*step.helpers[:i], changed, *step.helpers[i + 1 :])
            yield f"{helper.name} = {wrong}", replace(step, helpers=made)


def fails(step: Step, by_hand: Callable[..., torch.Tensor]) -> bool:
    try:
        return not is_right(step, by_hand)
    except (NameError, KeyError, TypeError, AttributeError, RuntimeError, IndexError):
        return True  # Python itself notices


def test_every_builder_of_the_module_is_here() -> None:
    made = {name.split("(")[0] for name in STEPS}
    builders = {
        name
        for name, value in vars(steps).items()
        if inspect.isfunction(value) and value.__module__ == steps.__name__
    }
    assert builders == made | {"activated"}  # which makes helpers of two of them


@every_step
def test_value_and_gradients_are_right(name: str) -> None:
    assert is_right(*STEPS[name])


def equal(one: object, other: object) -> bool:
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and torch.equal(one, other)


def plain(text: str, step: Step) -> str:
    """A line with the names of equal values made one: roundings have other tests."""
    known = known_by(step, {k: v.detach() for k, v in case(step).items()}, "torch")
    same = {
        name: next(n for n in known if known[n] is value or equal(known[n], value))
        for name, value in known.items()
        if isinstance(value, torch.Tensor)
    }
    target, _, formula = text.rpartition(" = ")
    return f"{target} = {substitute(formula, same)}"


def lines(step: Step) -> Iterator[str]:
    """What stands in a step, as :func:`wrong_steps` tells it."""
    yield step.value
    yield from (f"d{name} = {formula}" for name, formula in step.grads.items())
    yield from (f"{helper.name} = {helper.value}" for helper in step.helpers)


#: The slope of relu, told by its result or as a truth value; a sigmoid or tanh by the
#: name of the value that it shares with its slope.
EQUIVALENT = {
    *("opened = sigma_gate", "opened = bend_gate", "sigma_y", "bend_y"),
    "slope_gate = where(opened <= 0.0, 0.0, 1.0)",
}


@every_step
def test_every_wrong_formula_is_noticed(name: str) -> None:
    step, by_hand = STEPS[name]
    right = {plain(line, step) for line in lines(step)}
    wrong = [w for w in wrong_steps(step) if plain(w[0], step) not in right]
    wrong = [w for w in wrong if w[0] not in EQUIVALENT]
    assert wrong
    survivors = [text for text, mutant in wrong if not fails(mutant, by_hand)]
    assert not survivors


@every_step
def test_a_step_has_one_gradient_per_input(name: str) -> None:
    step, _ = STEPS[name]
    assert set(step.grads) == {"x", *(operand.name for operand in step.operands)}


@every_step
def test_every_helper_is_read_and_made_before_it_is_read(name: str) -> None:
    step, _ = STEPS[name]
    made = {"x", "rstd", *(operand.name for operand in step.operands)}
    read = names(step.value).union(*map(names, step.grads.values()))
    for helper in step.helpers:
        others = {h.name for h in step.helpers} - made
        assert not names(helper.value) & others, helper
        made.add(helper.name)
        read |= names(helper.value)
    assert {helper.name for helper in step.helpers} <= read


@every_step
def test_before_the_statistic_a_step_maps_zero_to_zero(name: str) -> None:
    """Beyond a row's end its inputs are 0, and means are taken over whole blocks."""
    step, _ = STEPS[name]
    zeros = {key: torch.zeros_like(v.detach()) for key, v in case(step).items()}
    known = known_by(step, zeros, "triton")
    value = evaluate(step.value, known, "triton")
    keeps = step.out in ("h", "scaled", "gated", "branched", "rounded", "sized")
    assert torch.equal(value, torch.zeros_like(value)) or not keeps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_offset_is_added_in_the_precision_asked_for(dtype: torch.dtype) -> None:
    w = torch.tensor([2.0**-12, 0.3], dtype=dtype)
    for precision, expected in (("float32", torch.float32), ("param", dtype)):
        gain = steps.offset_factor("gain", 1.0, W, precision)
        eager = evaluate(gain.value, {"w": w.to(expected)})
        assert eager.dtype == expected
        assert gain.promotes == (("w",) if precision == "param" else WIDE)
        kernel = evaluate(gain.value, {"w": w.float()}, "triton")
        assert torch.equal(kernel.to(expected), eager)


@pytest.mark.parametrize("precision", ["param", "float32"])
def test_a_product_is_rounded_by_promotion_or_not_at_all(precision: str) -> None:
    wanted = WIDE if precision == "float32" else ("gate",)
    step = steps.multiply_activated("gated", steps.GATE, "opened", "silu", precision)
    assert step.promotes == wanted
    rounded = {helper.name: helper.promotes for helper in step.helpers}
    shared = {name: WIDE for name in rounded if name != "opened"}
    assert rounded == {**shared, "opened": wanted}
    assert steps.multiply("y", steps.GATE, precision=precision).promotes == wanted
    assert steps.add("y", steps.GATE, precision).promotes == wanted


def test_numbers_take_no_part_in_promotion() -> None:
    assert steps.times("sized", "0.5").promotes == ()
    assert steps.activate("gelu").promotes == ()


def test_a_scaled_residual_is_rounded_to_its_own_dtype_before_it_is_added() -> None:
    for step in (steps.add_residual("added", 0.5), steps.residual_sum(0.5, True)):
        assert [(h.name, h.promotes) for h in step.helpers] == [("scaled_r", ("r",))]
        assert step.promotes == ("r",)
    unrounded = steps.residual_sum(0.5, rounded=False)
    assert [h.promotes for h in unrounded.helpers] == [WIDE]
    assert unrounded.promotes == WIDE


def test_only_what_is_rounded_and_stored_is_replayed() -> None:
    for scale in (None, 0.5):
        assert steps.residual_sum(scale, rounded=True).replayed
        assert not steps.residual_sum(scale, rounded=False).replayed
        assert steps.residual_sum(scale, rounded=False).returned
    for step, _ in STEPS.values():
        assert step.returned or not step.replayed


def test_operands_have_short_names_and_stand_in_the_order_of_arguments() -> None:
    assert [operand.argument for operand in steps.OPERANDS] == [
        *("weight", "bias", "weight2", "bias2", "residual", "gate"),
        *("scale", "shift", "scale2", "shift2", "branch_scale"),
    ]
    made = [operand.name for operand in steps.OPERANDS]
    assert len(set(made)) == len(made)
    assert all(len(name) <= 8 for name in made)


@pytest.mark.parametrize("space", [ELEMENT, COLUMN, SAMPLE])
def test_a_step_keeps_the_space_of_its_operand(space) -> None:
    operand = Operand("s", "scale", space)
    assert steps.multiply("y", operand).operands == (operand,)
    assert steps.add("y", operand).operands == (operand,)
