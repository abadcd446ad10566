"""An independent oracle: what a norm must return, in float64, with derived bounds.

Written from the numerics contract, not from the templates:

* statistics two-pass in float64 on the exact low-precision inputs;
* values are rounded where the contract rounds them: to the promotion of the operands of
  a step, where ``rounding`` asks for it, and to the dtype of a result;
* a rounding has the identity as its gradient, and gradients are autograd's, in float64.

The same lines of :func:`contract` are evaluated twice: on float64 tensors, for exact
values and gradients, and on intervals, for the bounds of any float32 evaluation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from normgen.spec import Norm
from support.arithmetic import Bounded, Exact
from support.inputs import DTYPES, Inputs, residual_dtype
from support.intervals import Interval
from support.normalization import Facts, float32
from support.places import Places, operand_spaces

F32 = torch.float32


@dataclass(frozen=True)
class Value:
    """A payload (float64 tensor or node of intervals) and its dtype in the contract."""

    payload: Any
    dtype: torch.dtype


def out_dtype(norm: Norm, io: torch.dtype, promoted: torch.dtype) -> torch.dtype:
    named = {"same": io, "promote": promoted, **DTYPES}
    return named[norm.out_dtype]


class Contract:
    """The steps of a norm, in one arithmetic; ``found`` has its values by name."""

    def __init__(
        self, norm: Norm, t: dict[str, Value], facts: Facts, arith: Any
    ) -> None:
        self.norm, self.t, self.facts, self.arith = norm, t, facts, arith
        self.io = facts.io
        self.found: dict[str, Any] = {}
        self._run()

    def _round(self, value: Value, dtype: torch.dtype) -> Value:
        return Value(self.arith.round(value.payload, dtype), dtype)

    def _join(self, made: Any, *dtypes: torch.dtype, wide: bool = False) -> Value:
        """A result, rounded to what its operands promote to, or float32."""
        dtype = F32 if wide else dtypes[0]
        for other in dtypes:
            dtype = torch.promote_types(dtype, other)
        return self._round(Value(made, F32), dtype)

    def _multiply(self, a: Value, b: Value, wide: bool = False) -> Value:
        made = self.arith.multiply(a.payload, b.payload)
        return self._join(made, a.dtype, b.dtype, wide=wide)

    def _add(self, a: Value, b: Value, wide: bool = False) -> Value:
        made = self.arith.add(a.payload, b.payload)
        return self._join(made, a.dtype, b.dtype, wide=wide)

    def _times(self, a: Value, number: float) -> Value:
        """A Python number takes no part in promotion."""
        return self._join(self.arith.times(a.payload, float32(number)), a.dtype)

    def _activated(self, name: str, a: Value, wide: bool = False) -> Value:
        return self._join(self.arith.activate(name, a.payload), a.dtype, wide=wide)

    def _cast(self, value: Value, to: str) -> Value:
        if to == "none":
            return value
        return self._round(value, self.io if to == "io" else self.t["weight"].dtype)

    def _weighed(self, value: Value, weight: str, wide: bool = False) -> Value:
        gain, affine = self.t[weight], self.norm.affine
        if affine.weight_offset:
            made = self.arith.plus(gain.payload, float32(affine.weight_offset))
            gain = self._join(made, gain.dtype, wide=affine.offset_precision != "param")
        return self._multiply(value, gain, wide)

    def _gated(self, value: Value) -> Value:
        gate = self.norm.gate
        wide = gate.precision == "float32"
        opened = self._activated(gate.activation, self.t["gate"], wide)
        return self._multiply(value, opened, wide)

    def _branch(self, value: Value) -> Value:
        branch = self.norm.branch_scale
        if branch is None:
            return value
        if branch.per is None:
            return self._times(value, branch.constant)
        wide, factor = branch.precision == "float32", self.t["branch_scale"]
        if branch.activation == "tanh":
            factor = self._activated("tanh", factor, wide)
        return self._multiply(value, factor, wide)

    def _carried(self, wide: bool) -> Value:
        """The residual, scaled."""
        residual, scale = self.t["residual"], self.norm.residual_scale
        if scale is None:
            return residual
        made = self.arith.times(residual.payload, float32(scale))
        return self._join(made, residual.dtype, wide=wide)

    def _modulated(self, value: Value, suffix: str) -> Value:
        modulation = self.norm.modulation
        wide = modulation.precision == "float32"
        if modulation.operands != "shift":
            factor = self.t[f"scale{suffix}"]
            if modulation.factor == "one_plus":
                made = self.arith.plus(factor.payload, 1.0)
                factor = self._join(made, factor.dtype, wide=wide)
            elif modulation.factor == "sigmoid":
                factor = self._activated("sigmoid", factor, wide)
            value = self._multiply(value, factor, wide)
        if modulation.operands != "scale":
            value = self._add(value, self.t[f"shift{suffix}"], wide)
        return value

    def _run(self) -> None:
        norm, arith = self.norm, self.arith
        row = self._prologue()
        self.stat = arith.normalize(self.facts, row.payload)
        self.found["factor"] = Value(self.stat["factor"], F32)
        self.found["mean"] = Value(self.stat["mean"], F32)
        if norm.output == "factor":
            dtype = out_dtype(norm, self.io, F32)
            self.found["y"] = self._round(self.found["factor"], dtype)
            return
        low = norm.statistics.precision != "float32"
        value = Value(self.stat["x_hat"], self.io if low else F32)
        value = self._cast(value, norm.rounding.normalized)
        self.found["x_hat"] = value
        if norm.scale is not None:
            number = norm.scale
            if number == "sqrt_hidden_size":
                number = math.sqrt(self.facts.length)
            value = self._times(value, number)
        y = self._affine(value, "")
        if norm.second_affine:
            self._result("y", y)
            self._result("y2", self._affine(value, "2"))
            return
        if norm.modulation is not None and norm.modulation.second:
            self._result("y", self._modulated(y, ""))
            self._result("y2", self._modulated(y, "2"))
            return
        self._result("y", self._end(y))

    def _prologue(self) -> Value:
        norm, value = self.norm, self.t["x"]
        if norm.residual == "pre_add":
            value, rounded = self._branch(value), norm.residual_sum == "rounded"
            carried = self._carried(wide=not rounded)
            made = self.arith.add(value.payload, carried.payload)
            value = Value(made, F32)
            stored = self._round(value, self.t["residual"].dtype)
            self.found["residual_sum"] = stored
            value = stored if rounded else value
        if norm.affine.position == "before":
            value = self._weighed(value, "weight", wide=True)
        if norm.gate is not None and norm.gate.position == "before":
            value = self._gated(value)
        return self._cast(value, norm.rounding.input)

    def _affine(self, value: Value, suffix: str) -> Value:
        norm = self.norm
        if norm.affine.position == "factor":
            weight = self.t["weight"]
            low = norm.statistics.precision != "float32"
            dtype = torch.promote_types(self.io, weight.dtype) if low else F32
            made = self.arith.gain(self.stat, weight.payload, dtype)
            value = self._round(Value(made, F32), dtype)
        elif norm.has_weight and norm.affine.position == "after":
            value = self._weighed(value, f"weight{suffix}")
        if norm.affine.bias:
            value = self._add(value, self.t[f"bias{suffix}"])
        return self._cast(value, norm.rounding.affine)

    def _end(self, value: Value) -> Value:
        norm = self.norm
        if norm.modulation is not None:
            value = self._modulated(value, "")
        if norm.gate is not None and norm.gate.position == "after":
            value = self._gated(value)
        if norm.post_activation != "none":
            value = self._activated(norm.post_activation, value)
        if norm.residual == "post_add":
            if norm.residual_sum == "rounded":
                value = self._round(value, out_dtype(norm, self.io, value.dtype))
            value = self._add(self._carried(wide=False), self._branch(value))
        return value

    def _result(self, name: str, value: Value) -> None:
        dtype = out_dtype(self.norm, self.io, value.dtype)
        if self.norm.residual == "post_add":
            dtype = self.t["residual"].dtype
        self.found[name] = self._round(value, dtype)


@dataclass(frozen=True)
class Expected:
    """A tensor that must come out: its dtype, its shape and bounds of its values."""

    bounds: Interval
    dtype: torch.dtype
    shape: torch.Size

    def check(self, actual: torch.Tensor, what: str) -> None:
        assert actual.dtype == self.dtype, f"{what} is {actual.dtype}, not {self.dtype}"
        assert actual.shape == self.shape, f"{what}: {actual.shape}, not {self.shape}"
        flat = actual.detach().to(self.bounds.low.device).reshape(self.bounds.low.shape)
        wrong = ~self.bounds.contains(flat)
        if not wrong.any():
            return
        got = flat[wrong].double()
        low, high = self.bounds.low[wrong], self.bounds.high[wrong]
        excess = torch.maximum(low - got, got - high)
        worst = int(excess.nan_to_num(nan=torch.inf).argmax())
        at = tuple(int(i) for i in wrong.nonzero()[worst])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} values out of bounds; at "
            f"{at} got {float(got[worst])!r}, expected {float(low[worst])!r} to "
            f"{float(high[worst])!r}"
        )


class Oracle:
    """Outputs and gradients of one norm on one set of inputs.

    ``eager`` asks for bounds of torch's own evaluation rather than of a kernel's.
    """

    def __init__(self, norm: Norm, inputs: Inputs, eager: bool = False) -> None:
        self.norm, self.inputs = norm, inputs
        self.places = Places(norm, inputs.x.shape)
        self.spaces = {"x": "element", **operand_spaces(norm)}
        eps = float(norm.eps if inputs.eps is None else inputs.eps)
        length = self.places.sizes[-1]
        self.facts = Facts(norm, length, float32(eps), inputs.x.dtype, eager)
        self.arith = Bounded()
        self.leaves = {
            name: Value(self.arith.enter(self.spread(name, tensor.double())), t.dtype)
            for name, tensor, t in (
                (name, t.detach(), t) for name, t in inputs.tensors().items()
            )
        }
        self.bounds = Contract(norm, self.leaves, self.facts, self.arith).found

    def spread(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """An operand in its places."""
        return self.places.spread(tensor, self.spaces[name])

    @cached_property
    def exact_leaves(self) -> dict[str, torch.Tensor]:
        """The operands in float64, in their places, as leaves of autograd."""
        return {
            name: self.spread(name, t.detach().double()).clone().requires_grad_()
            for name, t in self.inputs.tensors().items()
        }

    @cached_property
    def exact(self) -> dict[str, Value]:
        """The values in float64, rounded where the contract rounds."""
        tensors = self.inputs.tensors()
        values = {n: Value(t, tensors[n].dtype) for n, t in self.exact_leaves.items()}
        return Contract(self.norm, values, self.facts, Exact()).found

    @property
    def results(self) -> tuple[str, ...]:
        """What is returned and differentiable, in order."""
        names = ("y", "y2", "residual_sum")
        return tuple(name for name in names if name in self.bounds)

    def outputs(self) -> dict[str, Expected]:
        """y, y2, residual_sum, mean and rstd: what the spec asks for, in order."""
        wanted = {name: self._expected(name) for name in self.results}
        if self.norm.save_stats == "always":
            names = {"mean": "mean"} if self.norm.variant == "layer_norm" else {}
            for name, value in {**names, "rstd": "factor"}.items():
                bounds = self.bounds[value].payload.value.round(F32)
                shape = self.places.statistic_shape
                held = self._map(bounds, lambda v, shape=shape: v.reshape(shape))
                wanted[name] = Expected(held, F32, shape)
        return wanted

    def _expected(self, name: str) -> Expected:
        value = self.bounds[name]
        bounds = value.payload.value
        if self.norm.output == "factor":
            shape = self.places.factor_shape
            made = self._map(bounds, lambda v: v.reshape(shape))
            return Expected(made, value.dtype, shape)
        made = self._map(bounds, self.places.gathered)
        return Expected(made, value.dtype, self.inputs.x.shape)

    @staticmethod
    def _map(bounds: Interval, change: Any) -> Interval:
        return Interval(change(bounds.low), change(bounds.high))

    def output_dtype(self, name: str) -> torch.dtype:
        return self.bounds[name].dtype

    def incoming(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a result, in its places."""
        if self.norm.output == "factor":
            samples, rows, *_ = self.places.sizes
            return gradient.double().reshape(samples, rows, 1, 1)
        return self.places.spread(gradient.double(), "element")


__all__ = ["Expected", "Oracle", "Value", "residual_dtype"]
