"""What each step of a norm computes, as formulas.

A step maps the running value ``x`` to its output.  ``value`` is the formula of the
output, ``grads`` holds one formula per input, in terms of the inputs, the step's helper
values and ``dy``, the gradient of the output.  Formulas are per element; how the
gradient of an operand is reduced follows from its index space, and where from the
strategy.

A step may read the ``numerator`` of x_hat and ``rstd`` too.

Every value is float32.  The result is then rounded to the promotion of ``x``'s dtype
and ``promotes``, as eager torch would; a step with ``rounds_to`` rounds to that dtype
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from normgen.activations import ACTIVATIONS
from normgen.dtypes import Dtype
from normgen.expr import substitute
from normgen.spaces import COLUMN, ELEMENT, Space

#: what joins in a promotion so that a result is never rounded
WIDE = ("float32",)
Precision = Literal["float32", "param"]


@dataclass(frozen=True)
class Operand:
    """A tensor that a step reads.

    ``name`` is what kernels and formulas call it, ``argument`` what users do.
    """

    name: str
    argument: str
    space: Space
    learned: bool = False


@dataclass(frozen=True)
class Helper:
    """A value that several formulas of a step share, rounded to ``promotes``."""

    name: str
    value: str
    promotes: tuple[str, ...] = WIDE


@dataclass(frozen=True)
class Step:
    """One step.

    A ``returned`` output is also a result; a ``replayed`` one stands in memory exactly,
    and later sweeps read it back.  Before the statistic, a step must map 0 to 0: beyond
    a row's end its inputs are 0, and means are taken over whole blocks.
    """

    out: str
    value: str
    grads: Mapping[str, str]
    operands: tuple[Operand, ...] = ()
    helpers: tuple[Helper, ...] = ()
    promotes: tuple[str, ...] = ()
    rounds_to: Dtype | None = None
    returned: bool = False
    replayed: bool = False

    @property
    def is_cast(self) -> bool:
        """Whether a step does nothing but round."""
        return self.rounds_to is not None and self.value == "x"


WEIGHT = Operand("w", "weight", COLUMN, learned=True)
BIAS = Operand("b", "bias", COLUMN, learned=True)
WEIGHT2 = Operand("w2", "weight2", COLUMN, learned=True)
BIAS2 = Operand("b2", "bias2", COLUMN, learned=True)
RESIDUAL = Operand("r", "residual", ELEMENT)
GATE = Operand("gate", "gate", ELEMENT)
SCALE = Operand("s", "scale", ELEMENT)
SHIFT = Operand("t", "shift", ELEMENT)
SCALE2 = Operand("s2", "scale2", ELEMENT)
SHIFT2 = Operand("t2", "shift2", ELEMENT)
BRANCH = Operand("alpha", "branch_scale", ELEMENT)
#: in the order in which functions take them, after x
OPERANDS = (
    *(WEIGHT, BIAS, WEIGHT2, BIAS2, RESIDUAL, GATE),
    *(SCALE, SHIFT, SCALE2, SHIFT2, BRANCH),
)


def rounding(out: str, dtype: Dtype) -> Step:
    """A cast that no promotion implies; its gradient passes through."""
    return Step(out=out, value="x", grads={"x": "dy"}, rounds_to=dtype)


def times(out: str, number: str) -> Step:
    """x * number: a Python number takes no part in promotion."""
    return Step(out, f"x * {number}", {"x": f"dy * {number}"})


def multiply(
    out: str,
    operand: Operand,
    factor: Helper | None = None,
    slope: str = "",
    precision: Precision = "param",
) -> Step:
    """x * operand, or x * factor where the factor is made of the operand.

    ``slope`` is the derivative of the factor, if it is not 1.
    """
    name = operand.name if factor is None else factor.name
    return Step(
        out=out,
        value=f"x * {name}",
        grads={
            "x": f"dy * {name}",
            operand.name: f"dy * x * {slope}" if slope else "dy * x",
        },
        operands=(operand,),
        helpers=() if factor is None else (factor,),
        promotes=WIDE if precision == "float32" else (operand.name,),
    )


def offset_factor(
    name: str, offset: float, operand: Operand, precision: Precision
) -> Helper:
    """offset + operand, formed in float32 or in the operand's own dtype."""
    promotes = WIDE if precision == "float32" else (operand.name,)
    return Helper(name, f"{offset} + {operand.name}", promotes)


def add(out: str, operand: Operand, precision: Precision = "param") -> Step:
    """x + operand."""
    return Step(
        out=out,
        value=f"x + {operand.name}",
        grads={"x": "dy", operand.name: "dy"},
        operands=(operand,),
        promotes=WIDE if precision == "float32" else (operand.name,),
    )


def weigh_factor(weight: Operand, promotes: tuple[str, ...]) -> Step:
    """x_hat * weight, as numerator * (rstd * weight)."""
    w = weight.name
    return Step(
        out="scaled",
        value="numerator * row_gain",
        grads={"x": f"dy * {w}", w: "dy * x"},
        operands=(weight,),
        helpers=(Helper("row_gain", f"rstd * {w}", promotes),),
        promotes=promotes,
    )


def add_residual(out: str, scale: float | None, value: str = "r + x") -> Step:
    """The sum with scale * residual."""
    if scale is None:
        return Step(out, value, {"x": "dy", "r": "dy"}, (RESIDUAL,), promotes=("r",))
    carried = Helper("scaled_r", f"r * {scale!r}", ("r",))
    return Step(
        out=out,
        value=substitute(value, {"r": carried.name}),
        grads={"x": "dy", "r": f"dy * {scale!r}"},
        operands=(RESIDUAL,),
        helpers=(carried,),
        promotes=("r",),
    )


def residual_sum(scale: float | None, rounded: bool) -> Step:
    """h, the sum that is returned: stored as rounded and read back wherever it is
    needed again, or unrounded for all that follows."""
    step = replace(add_residual("h", scale, "x + r"), returned=True)
    if rounded:
        return replace(step, replayed=True)
    helpers = tuple(replace(helper, promotes=WIDE) for helper in step.helpers)
    return replace(step, promotes=WIDE, helpers=helpers)


def multiply_activated(
    out: str, operand: Operand, factor: str, activation: str, precision: Precision
) -> Step:
    """x * activation(operand), the activation rounded as the product is."""
    promotes = WIDE if precision == "float32" else (operand.name,)
    shared, value, slope = activated(activation, operand.name, operand.name)
    step = multiply(
        out, operand, Helper(factor, value, promotes), slope.name, precision
    )
    return replace(step, helpers=(*shared, *step.helpers, slope))


def activate(activation: str) -> Step:
    """An activation of x, rounded to x's own dtype."""
    shared, value, slope = activated(activation, "x", "y")
    return Step(
        "activated", value, {"x": f"dy * {slope.name}"}, helpers=(*shared, slope)
    )


def activated(
    activation: str, z: str, suffix: str
) -> tuple[tuple[Helper, ...], str, Helper]:
    """What an activation of ``z`` shares, its value, and its slope."""
    made = ACTIVATIONS[activation]
    names = {"z": z, **{name: f"{name}_{suffix}" for name in made.shared}}
    shared = tuple(
        Helper(names[name], substitute(formula, names))
        for name, formula in made.shared.items()
    )
    slope = Helper(f"slope_{suffix}", substitute(made.slope, names))
    return shared, substitute(made.value, names), slope
