"""Activations in float64, and by how much float32 may miss them.

``exp`` of a GPU is 2 to the power of z * log2(e): 2 ulps of the power, and the rounding
of the product, which counts |z| times.  1 / (1 + exp(-z)) adds a sum and a division of
2 ulps.  ``erf`` of a GPU is good to 2 ulps, that of torch's gelu on the CPU
to 1.5e-7 and its roundings, 8 U of the half of 1 + erf.  The bounds
follow by the first derivatives of the formulas; each holds for value and slope alike
in whatever way they are written, as long as nothing large cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from support.intervals import Interval, U

Function = Callable[[torch.Tensor], torch.Tensor]
STEEP = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Activation:
    """``value`` and its derivative ``slope``, each with an absolute error bound.

    ``rate`` bounds the derivative, ``bend`` that of the slope; the value of a
    ``monotone`` function needs no rate.
    """

    value: Function
    error: Function
    slope: Function
    slope_error: Function
    rate: float
    bend: float
    monotone: bool = False

    def values(self, z: Interval) -> Interval:
        error = torch.maximum(self.error(z.low), self.error(z.high))
        if self.monotone:
            made = z.rising(self.value)
        else:
            middle = (z.low + z.high) / 2
            made = Interval.around(self.value(middle), self.rate * z.width / 2)
        return Interval(made.low - error, made.high + error)

    def slopes(self, z: Interval) -> Interval:
        middle = (z.low + z.high) / 2
        error = torch.maximum(self.slope_error(z.low), self.slope_error(z.high))
        return Interval.around(self.slope(middle), self.bend * z.width / 2 + error)


def _sigma_error(z: torch.Tensor) -> torch.Tensor:
    return (10 + 2 * z.abs()) * U * torch.sigmoid(z)


def _normal(z: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def _below(z: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))


def _bend(z: torch.Tensor) -> torch.Tensor:
    return torch.tanh(STEEP * (z + 0.044715 * z**3))


def _steep(z: torch.Tensor) -> torch.Tensor:
    return STEEP * (1 + 3 * 0.044715 * z * z)


def _silu_slope(z: torch.Tensor) -> torch.Tensor:
    sigma = torch.sigmoid(z)
    return sigma * (1 + z * (1 - sigma))


class Step:
    """relu: its slope jumps at 0, where torch takes 0."""

    def values(self, z: Interval) -> Interval:
        return z.within(0.0, math.inf)

    def slopes(self, z: Interval) -> Interval:
        return Interval((z.low > 0).double(), (z.high > 0).double())


ACTIVATIONS: dict[str, Activation | Step] = {
    "relu": Step(),
    "sigmoid": Activation(
        value=torch.sigmoid,
        error=_sigma_error,
        slope=lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
        slope_error=lambda z: _sigma_error(z) + 2 * U,
        rate=0.25,
        bend=0.1,
        monotone=True,
    ),
    # 2 * decay / (1 + decay) is what the closed form of tanh is off by: from 0.25 on
    # 17 U; below it the series is good to 4 U
    "tanh": Activation(
        value=torch.tanh,
        error=lambda z: 20 * U * torch.tanh(z).abs(),
        slope=lambda z: 1 - torch.tanh(z).square(),
        slope_error=lambda z: 42 * U + 0 * z,
        rate=1.0,
        bend=0.78,
        monotone=True,
    ),
    "silu": Activation(
        value=torch.nn.functional.silu,
        error=lambda z: z.abs() * (_sigma_error(z) + U * torch.sigmoid(z)),
        slope=_silu_slope,
        slope_error=lambda z: (1 + z.abs()) * (_sigma_error(z) + 4 * U),
        rate=1.1,
        bend=0.5,
    ),
    "gelu": Activation(
        value=lambda z: z * _below(z),
        error=lambda z: z.abs() * 8 * U,
        slope=lambda z: _below(z) + z * _normal(z),
        slope_error=lambda z: 8 * U + 0 * z,
        rate=1.13,
        bend=0.8,
    ),
    "gelu_tanh": Activation(
        value=lambda z: z * 0.5 * (1 + _bend(z)),
        error=lambda z: z.abs() * 15 * U,
        slope=lambda z: (
            0.5 * (1 + _bend(z)) + 0.5 * z * (1 - _bend(z).square()) * _steep(z)
        ),
        slope_error=lambda z: 15 * U + 25 * U * z.abs() * _steep(z),
        rate=1.13,
        bend=0.9,
    ),
}

EAGER: dict[str, Function] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
}
