"""Gradients that must come out, with bounds derived from float32 arithmetic.

The centre is autograd's, in float64.  What a kernel computes instead is

    dx = rstd * (dx_hat - mean(dx_hat) - x_hat * mean(dx_hat * x_hat) * f) [+ d_sum]
    dw = sum over rows of dy * x_hat (as the affine part saw it),   db = sum of dy

with f = (root + eps) / root where eps stands outside the root, else 1.  Its error is

* depth(H) + 4 roundings of the terms of the bracket, relative to the row's own scale;
* what an error of x_hat and of rstd does to the bracket;
* for dw and db, (2 + sqrt(M)) roundings of the sum of magnitudes: errors of sums in
  float32 grow like a random walk; and x_hat's own error, an ulp where a tie is near;
* one rounding to the dtype of the tensor, made on both ends.
"""

from __future__ import annotations

import math

import torch

from support.intervals import TINY, Interval, U, depth
from support.oracle import Expected, Oracle


def gradients(
    oracle: Oracle, dy: torch.Tensor | None, d_sum: torch.Tensor | None = None
) -> dict[str, Expected]:
    """The gradient of every operand, from those of y and of the residual sum."""
    exact, leaves = oracle.exact, oracle.leaves
    upstream = {"y": dy, "residual_sum": d_sum}
    given = {
        name: gradient.double().reshape(-1, oracle.length)
        for name, gradient in upstream.items()
        if gradient is not None
    }
    nodes = {**leaves, "x_hat": exact["x_hat"]}
    found = torch.autograd.grad(
        [exact[name].payload for name in given],
        list(nodes.values()),
        list(given.values()),
        allow_unused=True,
        retain_graph=True,
    )
    centre = {
        name: torch.zeros_like(node) if gradient is None else gradient
        for (name, node), gradient in zip(nodes.items(), found, strict=True)
    }
    dx_hat = centre.pop("x_hat")
    error = {"x": _row_error(oracle, dx_hat), "residual": torch.zeros(())}
    if oracle.norm.residual == "pre_add":
        error["x"] = error["x"] + 2 * U * centre["x"].abs()
        error["residual"] = error["x"]
    dy64 = given.get("y", torch.zeros_like(dx_hat))
    error |= _column_errors(oracle, dy64)
    tensors = oracle.inputs.tensors()
    return {
        name: Expected(
            Interval.around(value.detach(), error[name]).round(tensors[name].dtype),
            tensors[name].dtype,
            tensors[name].shape,
        )
        for name, value in centre.items()
    }


def _row_error(oracle: Oracle, dx_hat: torch.Tensor) -> torch.Tensor:
    """By how much float32 arithmetic may miss an element of dx (without d_sum)."""
    norm, exact = oracle.norm, oracle.exact
    x_hat, rstd = exact["x_hat"].detach(), exact["rstd"].detach()
    factor = torch.ones_like(rstd)
    if norm.eps_placement == "outside_sqrt":
        root = exact["square"].detach().sqrt()
        factor = torch.where(root > 0, 1 / (rstd * root), 1.0)
    x_hat_error = oracle.bounds["x_hat"].width
    rstd_error = (oracle.bounds["rstd"].width / rstd).abs()

    def mean(value: torch.Tensor) -> torch.Tensor:
        return value.mean(-1, keepdim=True)

    projected = mean((dx_hat * x_hat).abs()) * factor
    scale = dx_hat.abs() + x_hat.abs() * projected * factor
    if norm.variant == "layer_norm":
        scale = scale + mean(dx_hat.abs())
    roundings = depth(oracle.length) + 4
    through_x_hat = x_hat_error * projected
    through_mean = x_hat.abs() * factor * mean(dx_hat.abs() * x_hat_error)
    bracket = (roundings * U + rstd_error) * scale + through_x_hat + through_mean
    return rstd * bracket + TINY


def _column_errors(oracle: Oracle, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    growth = (2 + math.sqrt(dy.shape[0])) * U
    rounded = oracle.bounds["x_hat_rounded"]
    terms = dy.abs() * rounded.magnitude
    from_x_hat = (dy.abs() * rounded.width).sum(0, keepdim=True)
    return {
        "weight": growth * terms.sum(0, keepdim=True) + from_x_hat + TINY,
        "bias": growth * dy.abs().sum(0, keepdim=True) + TINY,
    }
