"""Gradients that must come out, with bounds derived from float32 arithmetic.

They are those of the steps of the contract, walked back in intervals: every product,
sum and slope with its rounding in float32, the row by the chain rule

    dx = f * (dx_hat - mean(dx_hat) - f * (x - mean) * k * mean(dx_hat * x_hat))

with k = -2 f'(s) / f(s)^3.  The terms of a sum over rows may be off by (2 + sqrt(M))
roundings of the sum of magnitudes: errors of sums in float32 grow like a random walk.
At the end stands one rounding to the dtype of the tensor, made on both ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from support.arithmetic import gathered
from support.intervals import TINY, Interval
from support.oracle import Expected, Oracle


def gradients(
    oracle: Oracle, upstream: Mapping[str, torch.Tensor | None]
) -> dict[str, Expected]:
    """The gradient of every operand, from those of the results by name."""
    given = {
        oracle.bounds[name].payload: oracle.incoming(name, gradient)
        for name, gradient in upstream.items()
        if gradient is not None
    }
    oracle.arith.pull(given)
    found = {}
    for name, tensor in oracle.inputs.tensors().items():
        bounds = _summed(oracle, name)
        if oracle.spaces[name] == "element":
            bounds = Interval(*map(oracle.places.gathered, (bounds.low, bounds.high)))
        shape = tensor.shape
        bounds = Interval(bounds.low.reshape(shape), bounds.high.reshape(shape))
        found[name] = Expected(bounds.round(tensor.dtype), tensor.dtype, shape)
    return found


def _summed(oracle: Oracle, name: str) -> Interval:
    """The gradient of an operand: the sum over all places that it is read in."""
    node = oracle.leaves[name].payload
    own = node.value.low.shape
    gradient = gathered(node)
    if gradient is None:
        return Interval.around(torch.zeros_like(node.value.low))
    sizes = oracle.places.sizes
    gradient = Interval(gradient.low.expand(sizes), gradient.high.expand(sizes))
    axes = tuple(i for i in range(4) if own[i] == 1 and sizes[i] != 1)
    terms = math.prod(sizes[i] for i in axes)
    if not axes:
        return gradient
    total = gradient.sum(axes, 2 + math.sqrt(terms))
    return Interval(total.low - TINY, total.high + TINY)


def exact_gradients(
    oracle: Oracle, upstream: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The same by autograd in float64, each in its places."""
    leaves = oracle.exact_leaves
    found = torch.autograd.grad(
        [oracle.exact[name].payload for name in upstream],
        list(leaves.values()),
        [oracle.incoming(name, gradient) for name, gradient in upstream.items()],
        allow_unused=True,
    )
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }
