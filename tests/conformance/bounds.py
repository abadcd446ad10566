"""How far a fused kernel may be from the emitted reference, derived and not guessed.

The reference reduces a row with torch's own ``mean`` and ``sum``.  A fused kernel adds
the same terms in another order, and a Triton kernel in a third: in float32, with
u = 2^-24, a sum over n terms is off by at most

    d = (log2(n) + 8 + 4) u

relative to the sum of their magnitudes (support.intervals says why 8; the 4 are the
roundings of the terms and of the division), and a root by 2 u.  Everything else in the
reference is elementwise, and each elementwise operation is monotone in each operand,
its rounding included.  So what the same formula may return lies between the smallest
and the largest of its values with every reduction at one end or the other of its
interval: the reference is run at all corners, with every rounding that it has.

In a half precision most intervals end in one value, and the check is bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support.intervals import U, depth
from torch.overrides import TorchFunctionMode

Outputs = tuple[torch.Tensor, ...]

REDUCTIONS = ("mean", "sum")
ROOTS = {"rsqrt": -1, "sqrt": 1}
ACTIVATIONS = ("silu", "sigmoid", "tanh", "gelu")
#: exp and erf differ by some ulps from library to library
ACTIVATION_ULPS = 4


def slack(length: int) -> float:
    """d, the relative error of a sum over ``length`` terms."""
    return (depth(length) + 4) * U


@dataclass(frozen=True)
class Between:
    """All values from low to high."""

    low: torch.Tensor
    high: torch.Tensor

    def outside(self, value: torch.Tensor) -> int:
        """How many values are not between the ends; NaN is nowhere."""
        return int((~((self.low <= value) & (value <= self.high))).sum())


class _Moved(TorchFunctionMode):
    """Every row reduction at one end of its interval, a root at the end that agrees.

    ``ends`` holds -1 or 1 for each reduction, in order, then one for activations.
    """

    def __init__(self, ends: Sequence[int] = (), *, activations: bool = False) -> None:
        super().__init__()
        self.ends, self.count = ends, 0
        self.activations, self.activated = activations, False

    def _end(self, place: int) -> int:
        return self.ends[place] if place < len(self.ends) else 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in REDUCTIONS and kwargs.get("keepdim"):
            self.count += 1
            return _reduced(func, args, kwargs, made, self._end(self.count - 1))
        if name in ROOTS and self.count:
            return made * (1 + 2 * U * ROOTS[name] * self._end(self.count - 1))
        if name in ACTIVATIONS and self.activations:
            self.activated = True
            end = self.ends[-1] if self.ends else 0
            return made * (1 + ACTIVATION_ULPS * U * end)
        return made


def _reduced(func: Any, args: Any, kwargs: Any, made: Any, end: int) -> torch.Tensor:
    """The end of the interval of a reduction, in the dtype that it has."""
    terms, *rest = args
    exact = func(terms.double(), *rest, **kwargs)
    error = func(terms.double().abs(), *rest, **kwargs) * slack(terms.shape[-1])
    return (exact + end * error).float().to(made.dtype)


def corners(
    reference: Callable[[], Outputs], *, activations: bool = False
) -> tuple[Between, ...]:
    """The interval of each output of an emitted reference."""
    with _Moved(activations=activations) as counted:
        reference()
    count = counted.count + counted.activated
    found: list[Outputs] = []
    for ends in itertools.product((-1, 1), repeat=count):
        with _Moved(ends, activations=activations):
            found.append(reference())
    stacked = (torch.stack(outputs) for outputs in zip(*found, strict=True))
    return tuple(Between(s.amin(0), s.amax(0)) for s in stacked)


class Given(TorchFunctionMode):
    """Row statistics that are known: what makes them returns them instead."""

    def __init__(self, rstd: torch.Tensor, mean: torch.Tensor | None = None) -> None:
        super().__init__()
        self.rstd, self.mean = rstd, mean

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "mean" and self.mean is not None:
            given, self.mean = self.mean, None
            return given.view_as(made)
        return self.rstd.view_as(made) if name == "rsqrt" else made
