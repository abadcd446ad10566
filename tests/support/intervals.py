"""Enclosures of what float32 arithmetic may return, as float64 intervals.

No tolerance is guessed.  A value of the contract is carried as the interval of all
results that float32 may give, in any order, with fused multiply-adds or without:

* one operation is rounded to float32, or not at all inside a fused multiply-add: both;
* a sum over n terms is off by depth(n) * U relative to the sum of their magnitudes;
* a result below the smallest normal number may also be 0, because GPUs flush there;
* rounding to another dtype is monotone, so rounding both ends bounds the rounded value.
  Most intervals are far narrower than an ulp of bfloat16 and end in one point: there
  the check is bit for bit.  They end in two where the exact value is near a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

U = 2.0**-24  # half an ulp of float32, relative
TINY = 2.0**-126  # the smallest normal float32
#: the largest relative error of a rounding to each dtype
UNITS = {torch.float32: U, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
RSQRT_ULPS = 4.0  # rsqrt.approx and div.full of a GPU: 2 ulps = 4 U


def depth(n: int) -> float:
    """How many roundings meet in one term of a sum over n terms, with some spare.

    Trees take log2(n); a thread of a GPU adds up to some dozens of terms in order,
    whose errors grow as a random walk, sqrt(64) = 8.
    """
    return 0.0 if n == 1 else math.log2(n) + 8.0


def to_dtype(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 -> float32 -> dtype, the way a kernel's value goes, as float64."""
    return value.to(torch.float32).to(dtype).to(torch.float64)


@dataclass(frozen=True)
class Interval:
    low: torch.Tensor
    high: torch.Tensor

    @staticmethod
    def around(value: torch.Tensor, error: torch.Tensor | float = 0.0) -> Interval:
        return Interval(value - error, value + error)

    @property
    def width(self) -> torch.Tensor:
        return self.high - self.low

    @property
    def magnitude(self) -> torch.Tensor:
        return torch.maximum(self.low.abs(), self.high.abs())

    def computed(self) -> Interval:
        """The results of one float32 operation whose exact ones are these."""
        low = torch.minimum(self.low, to_dtype(self.low, torch.float32))
        high = torch.maximum(self.high, to_dtype(self.high, torch.float32))
        return Interval(
            torch.where(low.abs() < TINY, -TINY, low),
            torch.where(high.abs() < TINY, TINY, high),
        )

    def widened(self, ulps: float) -> Interval:
        error = self.magnitude * (U * ulps)
        return Interval(self.low - error, self.high + error)

    def rounded_by(self, dtype: torch.dtype, count: int) -> Interval:
        """What so many roundings to ``dtype`` may make of these, at most."""
        error = self.magnitude * (count * UNITS[dtype])
        return Interval(self.low - error, self.high + error)

    def within(self, low: float, high: float) -> Interval:
        return Interval(self.low.clamp(low, high), self.high.clamp(low, high))

    def hull(self, other: Interval) -> Interval:
        return Interval(
            torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        )

    def rising(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Interval:
        """The values of a function that nowhere falls."""
        return Interval(function(self.low), function(self.high))

    def square(self) -> Interval:
        ends = torch.minimum(self.low.abs(), self.high.abs())
        least = torch.where((self.low <= 0) & (self.high >= 0), 0.0, ends)
        return Interval(least.square(), self.magnitude.square())

    def inverse(self) -> Interval:
        """1 / these, all above 0 (or 0, whose inverse is infinite)."""
        return Interval(1 / self.high, 1 / self.low)

    def sum(self, axis: int | tuple[int, ...], roundings: float) -> Interval:
        """The sums that float32 may return, off by so many roundings of its terms."""
        error = roundings * U * self.magnitude.sum(axis, keepdim=True)
        low, high = (end.sum(axis, keepdim=True) for end in (self.low, self.high))
        return Interval(low - error, high + error)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = torch.stack(
            torch.broadcast_tensors(
                self.low * other.low,
                self.low * other.high,
                self.high * other.low,
                self.high * other.high,
            )
        )
        return Interval(ends.amin(0), ends.amax(0))

    def round(self, dtype: torch.dtype) -> Interval:
        return Interval(to_dtype(self.low, dtype), to_dtype(self.high, dtype))

    def contains(self, actual: torch.Tensor) -> torch.Tensor:
        value = actual.to(torch.float64)
        return (self.low <= value) & (value <= self.high)
