"""The gradients of a class in float64, and what float32 may make of them.

With g the gradient of x where mean and rstd are held fixed, so g = dx_hat * rstd,

    dx = g - mean(g) - x_hat * mean(g * x_hat)        (no mean(g) where not centred)

Evaluated in float32, each product and sum is off by u = 2^-24, a mean over the row by d
(see bounds.py) of the mean of magnitudes, x_hat by d of itself.  As mean(x_hat^2) <= 1,
mean(abs(g * x_hat)) <= rms(g), so that dx is off by at most

    4 d (abs(g) + rms(g) * (1 + abs(x_hat)))

and by half an ulp of the scale besides, where offset + weight is rounded: the class in
float64 does not round it.  A parameter's gradient is a sum over M rows of terms t, each
off by d and, where x_hat is rounded before the weight, by half an ulp of x_hat:
(d + M u + half an ulp) * sum(abs(t)).  Then each is rounded once, to the dtype of its
tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.bounds import Between, U, slack
from conformance.case import Case
from conformance.harness import Run, state_of

HALF_ULP = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
Compared = dict[str, tuple[torch.Tensor, Between]]


def compared(done: Run, theirs: Any, case: Case, dy: torch.Tensor) -> Compared:
    """The kernel's gradient of x and of each parameter, and where it must lie."""
    ours = _ours(done, dy)
    x, wide = done.x.detach().double().requires_grad_(), theirs.double()
    wide(x).backward(dy.double())
    exact = {"x": x.grad, **_of_parameters(case, wide)}
    errors = {"x": _row_error(done, dy), **_column_errors(done, dy)}
    return {
        name: (got, _between(exact[name].reshape(got.shape), errors[name], got.dtype))
        for name, got in ours.items()
    }


def _ours(done: Run, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the generated backward kernels return."""
    done.x = done.x.detach().requires_grad_()
    (y,) = done.kernel()
    y.backward(dy)
    named = {name: p.grad for name, p in done.ours.named_parameters()}
    return {"x": done.x.grad, **named}


def _of_parameters(case: Case, wide: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Their gradients under our names."""
    values = dict(wide.named_parameters())
    by_place = {value.data_ptr(): value.grad for value in values.values()}
    state = state_of(case, wide)
    return {name: by_place[value.data_ptr()] for name, value in state.items()}


def _between(value: torch.Tensor, error: torch.Tensor, dtype: torch.dtype) -> Between:
    """Both ends rounded to the dtype of the gradient."""
    low, high = (value - error).float(), (value + error).float()
    return Between(low.to(dtype).double(), high.to(dtype).double())


def _statistics(done: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """x_hat and rstd in float64, without eps: not smaller than with it."""
    x = done.x.detach().double()
    if done.norm.variant == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    rstd = x.square().mean(-1, keepdim=True).rsqrt()
    return x * rstd, rstd


def _gain(done: Run) -> torch.Tensor:
    """What x_hat is multiplied with: offset + weight, in float64."""
    weight = done.parameters().get("weight", torch.ones(()))
    return done.norm.affine.weight_offset + weight.double()


def _row_error(done: Run, dy: torch.Tensor) -> torch.Tensor:
    x_hat, rstd = _statistics(done)
    g = (dy.double() * _gain(done) * rstd).abs()
    rms = g.square().mean(-1, keepdim=True).sqrt()
    relative = 4 * slack(x_hat.shape[-1])
    if done.norm.affine.offset_precision == "param":
        relative += HALF_ULP[done.ours.weight.dtype]
    return relative * (g + rms * (1 + x_hat.abs()))


def _column_errors(done: Run, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    x_hat, _ = _statistics(done)
    rounded = done.norm.rounding.normalized != "none"
    half_ulp = HALF_ULP[done.x.dtype] if rounded else 0.0
    count = dy.numel() // dy.shape[-1]
    relative = slack(x_hat.shape[-1]) + count * U + half_ulp
    terms = {"weight": (dy.double() * x_hat).abs(), "bias": dy.double().abs()}
    rows = tuple(range(dy.ndim - 1))
    return {name: relative * term.sum(rows) for name, term in terms.items()}
