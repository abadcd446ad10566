"""An independent oracle: what a norm must return, in float64, with derived bounds.

Written from the numerics contract (DESIGN.md section 2), not from the templates:

* statistics two-pass in float64 on the exact low-precision inputs;
* values are rounded where the contract rounds them: the residual sum, x_hat to
  ``rounding.normalized``, the affine part to the promotion of its operands, then
  ``rounding.affine``, then the dtype of y;
* a rounding has the identity as its gradient, and gradients are autograd's, in float64.

The same few lines of :func:`contract` are evaluated twice: on float64 tensors, for
exact values and gradients, and on intervals, for the bounds of any float32 evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from normgen.spec import Norm
from support.inputs import DTYPES, Inputs, residual_dtype
from support.intervals import RSQRT_ULPS, TINY, Interval, U, depth, to_dtype

F32 = torch.float32


@dataclass(frozen=True)
class Value:
    """A payload (float64 tensor or interval) and its dtype in the contract."""

    payload: Any
    dtype: torch.dtype


class _StraightThrough(torch.autograd.Function):
    """A rounding: another value, the same gradient."""

    @staticmethod
    def forward(ctx: Any, exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Exact:
    """float64 tensors with autograd; rounded only where the contract rounds."""

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def round(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if dtype == F32:
            return value
        return _StraightThrough.apply(value, to_dtype(value.detach(), dtype))

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    def summed(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _StraightThrough.apply(a + b, to_dtype((a + b).detach(), F32))

    def normalize(self, norm: Norm, x: torch.Tensor, eps: float) -> dict[str, Any]:
        mean = x.mean(-1, keepdim=True)
        if norm.variant == "rms_norm":
            mean = torch.zeros_like(mean)
        square = (x - mean).square().mean(-1, keepdim=True)
        rstd = inverse_root(norm, square, eps)
        x_hat = (x - mean) * rstd
        return {"x_hat": x_hat, "mean": mean, "rstd": rstd, "square": square}


class Bounded:
    """Intervals that hold every float32 evaluation."""

    def enter(self, tensor: torch.Tensor) -> Interval:
        return Interval.around(tensor.detach())

    def round(self, value: Interval, dtype: torch.dtype) -> Interval:
        return value.round(dtype)

    def add(self, a: Interval, b: Interval) -> Interval:
        return (a + b).computed()

    def multiply(self, a: Interval, b: Interval) -> Interval:
        return (a * b).computed()

    def summed(self, a: Interval, b: Interval) -> Interval:
        return (a + b).round(F32)  # one exact addition: its float32 result is fixed

    def normalize(self, norm: Norm, x: Interval, eps: float) -> dict[str, Any]:
        length = x.low.shape[-1]
        exact = Exact().normalize(norm, x.low, eps)
        slack = depth(length) * U
        mean_error = slack * x.low.abs().mean(-1, keepdim=True) + TINY * (length > 1)
        if norm.variant == "rms_norm":
            mean_error = torch.zeros_like(mean_error)
        mean = Interval.around(exact["mean"], mean_error)
        # about a mean that is off by d, the mean square grows by d * d
        square = Interval(
            exact["square"] * (1 - slack - 2 * U),
            (exact["square"] + mean_error.square()) * (1 + slack + 4 * U),
        )
        rstd = Interval(
            inverse_root(norm, square.high, eps), inverse_root(norm, square.low, eps)
        ).widened(RSQRT_ULPS)
        if length == 1 and norm.variant == "layer_norm":
            centered = Interval.around(torch.zeros_like(x.low))
            return {"x_hat": centered, "mean": mean, "rstd": rstd}
        flushed = Interval.around(x.low, TINY)
        centered = (
            flushed if norm.variant == "rms_norm" else (flushed - mean).computed()
        )
        return {"x_hat": (centered * rstd).computed(), "mean": mean, "rstd": rstd}


def inverse_root(norm: Norm, square: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(s + eps) or 1 / (sqrt(s) + eps), eps as the float32 that it is."""
    eps = float(torch.tensor(eps, dtype=F32))
    if norm.eps_placement == "inside_sqrt":
        return (square + eps).rsqrt()
    # The root's slope at 0 is infinite, but multiplies x - mean = 0: the product's
    # limit is 0, so a zero row's slope is taken as 0.
    positive = square > 0
    root = torch.where(positive, square, 1.0).sqrt()
    return 1 / (torch.where(positive, root, 0.0) + eps)


def out_dtype(norm: Norm, io: torch.dtype, promoted: torch.dtype) -> torch.dtype:
    named = {"same": io, "promote": promoted, **DTYPES}
    return named[norm.out_dtype]


def contract(norm: Norm, t: dict[str, Value], eps: float, arith: Any) -> dict[str, Any]:
    """Every value of the contract by name, from the operands ``t``."""
    io = t["x"].dtype
    found: dict[str, Any] = {}
    x = t["x"].payload
    if norm.residual == "pre_add":
        x = arith.summed(x, t["residual"].payload)
        stored = arith.round(x, t["residual"].dtype)
        found["residual_sum"] = Value(stored, t["residual"].dtype)
        if norm.residual_sum == "rounded":
            x = stored
    found |= arith.normalize(norm, x, eps)

    value = Value(found["x_hat"], F32)
    if norm.rounding.normalized != "none":
        to = io if norm.rounding.normalized == "io" else t["weight"].dtype
        value = Value(arith.round(value.payload, to), to)
    found["x_hat_rounded"] = value.payload

    if norm.has_weight:
        gain = t["weight"]
        if norm.affine.weight_offset:
            held = torch.tensor(norm.affine.weight_offset, dtype=torch.float32).item()
            offset = torch.full_like(t["weight_raw"].payload, held)
            formed = arith.summed(gain.payload, arith.enter(offset))
            low = norm.affine.offset_precision == "param"
            dtype = gain.dtype if low else F32
            gain = Value(arith.round(formed, dtype), dtype)
        found["gain"] = gain.payload
        dtype = torch.promote_types(value.dtype, gain.dtype)
        product = arith.multiply(value.payload, gain.payload)
        value = Value(arith.round(product, dtype), dtype)
    if norm.affine.bias:
        dtype = torch.promote_types(value.dtype, t["bias"].dtype)
        biased = arith.add(value.payload, t["bias"].payload)
        value = Value(arith.round(biased, dtype), dtype)
    if norm.rounding.affine == "io":
        value = Value(arith.round(value.payload, io), io)

    if norm.residual == "post_add":
        if norm.residual_sum == "rounded":
            dtype = out_dtype(norm, io, value.dtype)
            value = Value(arith.round(value.payload, dtype), dtype)
        total = arith.add(value.payload, t["residual"].payload)
        value = Value(total, t["residual"].dtype)
    else:
        value = Value(value.payload, out_dtype(norm, io, value.dtype))
    found["y"] = Value(arith.round(value.payload, value.dtype), value.dtype)
    return found


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
    """Outputs and gradients of one norm on one set of inputs."""

    def __init__(self, norm: Norm, inputs: Inputs) -> None:
        self.norm, self.inputs = norm, inputs
        self.eps = float(norm.eps if inputs.eps is None else inputs.eps)
        self.length = inputs.x.shape[-1]
        self.leaves = {
            name: tensor.detach().double().reshape(-1, self.length).requires_grad_()
            for name, tensor in inputs.tensors().items()
        }
        self.exact = self._evaluate(Exact())
        self.bounds = self._evaluate(Bounded())

    def _evaluate(self, arith: Any) -> dict[str, Any]:
        tensors = self.inputs.tensors()
        values = {
            name: Value(arith.enter(leaf), tensors[name].dtype)
            for name, leaf in self.leaves.items()
        }
        if "weight" in values:
            values["weight_raw"] = Value(self.leaves["weight"].detach(), F32)
        return contract(self.norm, values, self.eps, arith)

    def outputs(self) -> dict[str, Expected]:
        """y, residual_sum, mean and rstd: those that the spec asks for, in order."""
        shape = self.inputs.x.shape
        wanted = {"y": self._expected("y", shape)}
        if self.norm.residual == "pre_add":
            wanted["residual_sum"] = self._expected("residual_sum", shape)
        if self.norm.save_stats == "always":
            names = ("mean", "rstd") if self.norm.variant == "layer_norm" else ("rstd",)
            for name in names:
                bounds = self.bounds[name].round(F32)
                wanted[name] = Expected(bounds, F32, shape[:-1])
        return wanted

    def _expected(self, name: str, shape: torch.Size) -> Expected:
        value = self.bounds[name]
        return Expected(value.payload.round(value.dtype), value.dtype, shape)

    def output_dtype(self, name: str) -> torch.dtype:
        return self.bounds[name].dtype


__all__ = ["Expected", "Oracle", "Value", "contract", "residual_dtype"]
