"""What each step of a norm computes, as formulas.

A step maps the running value ``x`` to its output.  ``value`` is the formula of the
output, ``grads`` holds one formula per input, in terms of the inputs, the step's helper
values and ``dy``, the gradient of the output.  Formulas are per element; how the
gradient of an operand is reduced follows from its index space, and where from the
strategy.

Every value is float32.  The result is then rounded to the promotion of ``x``'s dtype
and ``promotes``, as eager torch would; a step with ``rounds_to`` rounds to that dtype
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from normgen.dtypes import Dtype

Space = Literal["element", "column"]


@dataclass(frozen=True)
class Operand:
    """A tensor that a step reads: one value per (row, column), or one per column.

    ``name`` is what kernels and formulas call it, ``argument`` what users do.
    """

    name: str
    argument: str
    space: Space
    learned: bool = False


@dataclass(frozen=True)
class Helper:
    """A value that several formulas of a step share.

    ``rounds_to`` names the operand whose dtype it is rounded to; ``reference`` is the
    formula in eager torch, where promotion rounds by itself.
    """

    name: str
    value: str
    reference: str
    rounds_to: str | None = None


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


WEIGHT = Operand("w", "weight", "column", learned=True)
BIAS = Operand("b", "bias", "column", learned=True)
RESIDUAL = Operand("r", "residual", "element")
#: in the order in which functions take them, after x
OPERANDS = (WEIGHT, BIAS, RESIDUAL)

#: h = x + r, stored as rounded, and read back wherever it is needed again.
ROUNDED_SUM = Step(
    out="h",
    value="x + r",
    grads={"x": "dy", "r": "dy"},
    operands=(RESIDUAL,),
    promotes=("r",),
    returned=True,
    replayed=True,
)

#: The same sum, unrounded for all that follows; only what is stored is rounded.
UNROUNDED_SUM = replace(ROUNDED_SUM, promotes=("float32",), replayed=False)

SCALE = Step(
    out="scaled",
    value="x * w",
    grads={"x": "dy * w", "w": "dy * x"},
    operands=(WEIGHT,),
    promotes=("w",),
)

SHIFT = Step(
    out="shifted",
    value="x + b",
    grads={"x": "dy", "b": "dy"},
    operands=(BIAS,),
    promotes=("b",),
)

ADD_RESIDUAL = Step(
    out="added",
    value="x + r",
    grads={"x": "dy", "r": "dy"},
    operands=(RESIDUAL,),
    promotes=("r",),
)


def offset_scale(offset: float, precision: Literal["float32", "param"]) -> Step:
    """x * (offset + w), the sum formed in float32 or in the weight's own dtype."""
    in_param = precision == "param"
    gain = Helper(
        name="gain",
        value=f"{offset} + w",
        reference=f"{offset} + w" if in_param else f"{offset} + w.to(compute)",
        rounds_to="w" if in_param else None,
    )
    return Step(
        out="scaled",
        value="x * gain",
        grads={"x": "dy * gain", "w": "dy * x"},
        operands=(WEIGHT,),
        helpers=(gain,),
        promotes=("w",) if in_param else ("float32",),
    )


def rounding(out: str, dtype: Dtype) -> Step:
    """A cast that no promotion implies; its gradient passes through."""
    return Step(out=out, value="x", grads={"x": "dy"}, rounds_to=dtype)
