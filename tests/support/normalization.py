"""The statistic of a row, and the row normalized by it: exact, and in bounds.

A row ``x`` of the places [..., length] has the statistic s, the mean (or the sum) of
squares of ``x`` or of its deviations, and the factor f(s); x_hat is the numerator
(``x``, or ``x - mean``) times f.  With statistics in the dtype of x every value from
the result of a reduction on is rounded to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from normgen.spec import Norm
from support.intervals import RSQRT_ULPS, TINY, Interval, U, depth, to_dtype

F32 = torch.float32
#: where a bound on the norm or on s holds, within the roundings of float32 or of io
NEAR = {"float32": 4e-6, "io": 0.02, "io_stepwise": 0.02}


def float32(number: float) -> float:
    """A constant as kernels and torch take it."""
    return float(torch.tensor(number, dtype=F32))


@dataclass(frozen=True)
class Facts:
    """What a spec says of its statistic, for rows of ``length`` columns.

    ``eager`` is torch on the CPU, whose vector library takes roots to an ulp, and which
    rounds the root of some 16-bit values before its inverse, and eps to their dtype
    before it is added.
    """

    norm: Norm
    length: int
    eps: float
    io: torch.dtype
    eager: bool = False

    @property
    def is_layer(self) -> bool:
        return self.norm.variant == "layer_norm"

    @property
    def is_centered(self) -> bool:
        return self.is_layer and self.norm.statistics.centered

    @property
    def precision(self) -> str:
        return self.norm.statistics.precision

    @property
    def stepwise(self) -> bool:
        return self.precision == "io_stepwise"

    @property
    def divides(self) -> bool:
        return self.norm.statistics.root == "sqrt"

    @property
    def columns(self) -> int:
        """How many columns the statistic is of."""
        listed = self.norm.statistics.columns
        return self.length if listed == "all" else listed

    @property
    def over(self) -> int:
        """What the sum of squares is divided by."""
        if self.norm.variant == "l2_norm":
            return 1
        return self.columns - (self.norm.statistics.variance == "unbiased")

    @property
    def placement(self) -> str:
        return self.norm.eps_placement

    @property
    def root_is_first(self) -> bool:
        """Whether the root is what is rounded first, as .norm() and .std() do."""
        placements = ("outside_sqrt", "clamp_norm", "none")
        return self.precision == "io" and self.placement in placements


Round = Callable[[Any], Any]


def exact(
    facts: Facts, x: torch.Tensor, to_io: Round, to_rstd: Round
) -> dict[str, torch.Tensor]:
    """In float64, differentiable where ``to_io`` rounds straight through."""
    norm, eps = facts.norm, facts.eps
    mean = x.mean(-1, keepdim=True) if facts.is_layer else torch.zeros_like(x[..., :1])
    around = to_io(mean) if facts.stepwise else mean
    deviation = x - around
    if facts.stepwise and facts.is_layer:
        deviation = to_io(deviation)
    numerator = x
    if facts.is_centered:
        numerator = to_io(x - to_io(mean))
    squares = deviation[..., : facts.columns].square()
    s = (to_io(squares) if facts.stepwise else squares).sum(-1, keepdim=True)
    s = s / facts.over
    if facts.stepwise or not facts.root_is_first:
        s = to_io(s)

    def root(value: torch.Tensor) -> torch.Tensor:
        # The slope at 0 is infinite, but multiplies a deviation of 0: taken as 0.
        positive = value > 0
        safe = torch.where(positive, value, 1.0).sqrt()
        return torch.where(positive, safe, 0.0)

    if norm.max_norm is not None:
        bound = to_io(root(s))
        if facts.placement != "none":
            bound = to_io(bound + eps)
        factor = to_io(to_io(1 / bound) * float32(norm.max_norm)).clamp(max=1.0)
    else:
        denominator = {
            "inside_sqrt": lambda: to_io(s + eps).sqrt(),
            "clamp_stat": lambda: s.clamp(min=eps).sqrt(),
            "outside_sqrt": lambda: to_io(to_io(root(s)) + eps),
            "clamp_norm": lambda: to_io(root(s)).clamp(min=eps),
            "none": lambda: s.sqrt(),
        }[facts.placement]()
        factor = to_rstd(to_io(denominator if facts.divides else 1 / denominator))
    x_hat = to_io(numerator / factor if facts.divides else numerator * factor)
    return {"x_hat": x_hat, "mean": mean, "factor": factor, "numerator": numerator}


@dataclass(frozen=True)
class Bounds:
    """Enclosures of what float32 may make of a row, for values and for gradients.

    A gradient may be made of values before or after the roundings of the statistic:
    ``multiplier``, ``normal`` (x_hat) and ``direction`` (the deviation times f) hold
    both.  ``slope`` is -2 f'(s) / f(s)^3.
    """

    x_hat: Interval
    mean: Interval
    factor: Interval
    numerator: Interval
    multiplier: Interval
    normal: Interval
    direction: Interval
    slope: Interval


def bounded(facts: Facts, x: Interval) -> Bounds:
    """Of rows that are only known to lie in ``x``."""
    io, low = facts.io, facts.precision != "float32"

    def to_io(value: Interval) -> Interval:
        return value.round(io) if low else value

    middle, spread = (x.low + x.high) / 2, x.width / 2
    mean, mean_error = _mean(facts, middle, spread)
    deviation = (_flushed(x) - mean).computed() if facts.is_layer else _flushed(x)
    centered = (
        to_io((_flushed(x) - to_io(mean)).computed()) if facts.is_layer else deviation
    )
    if facts.length == 1 and facts.is_layer:
        deviation = centered = Interval.around(torch.zeros_like(middle))
    if facts.stepwise:
        terms = centered.square().computed().round(io)
        terms = Interval(
            terms.low[..., : facts.columns], terms.high[..., : facts.columns]
        )
        slack = depth(facts.columns) + 4
        s = terms.sum(-1, slack)
        s = Interval(s.low / facts.over, s.high / facts.over)
    else:
        s = _second_moment(facts, middle, spread, mean_error)
    s = Interval((s.low - TINY).clamp(min=0.0), s.high + TINY)
    free = _factor(facts, s, lambda value: value)
    factor = _factor(facts, s, to_io)
    if facts.norm.rounding.rstd == "io":
        factor = factor.round(io)
    multiplier = factor.inverse() if facts.divides else factor
    numerator = centered if facts.is_centered else _flushed(x)
    x_hat = to_io((numerator * multiplier).computed())
    held, normal, direction = multiplier, x_hat, centered * multiplier
    if facts.divides:
        x_hat = to_io((numerator * multiplier).widened(1.0).computed())
    if low or facts.norm.rounding.rstd == "io":
        unrounded = free.inverse() if facts.divides else free
        held = multiplier.hull(unrounded).rounded_by(io, 2)
        normal = (numerator.rounded_by(io, 1) * held).hull(x_hat)
        direction = (deviation.hull(centered)).rounded_by(io, 1) * held
        # the mean of rounded deviations is not quite 0
        drift = Interval(
            direction.low.mean(-1, keepdim=True), direction.high.mean(-1, keepdim=True)
        )
        if facts.is_layer:
            direction = direction.hull(direction - drift)
    return Bounds(
        x_hat=x_hat,
        mean=mean,
        factor=factor,
        numerator=numerator,
        multiplier=held,
        normal=normal.hull(x_hat),
        direction=direction,
        slope=_slope(facts, s, held),
    )


def _flushed(x: Interval) -> Interval:
    return Interval(x.low - TINY, x.high + TINY)


def _mean(
    facts: Facts, middle: torch.Tensor, spread: torch.Tensor
) -> tuple[Interval, torch.Tensor]:
    mean = middle.mean(-1, keepdim=True)
    size = (middle.abs() + spread).mean(-1, keepdim=True)
    error = depth(facts.length) * U * size + spread.mean(-1, keepdim=True)
    error = error + TINY * (facts.length > 1)
    if not facts.is_layer:
        return Interval.around(torch.zeros_like(mean)), torch.zeros_like(mean)
    return Interval.around(mean, error), error


def _second_moment(
    facts: Facts, middle: torch.Tensor, spread: torch.Tensor, off: torch.Tensor
) -> Interval:
    """s, of deviations from a mean that is ``off`` by at most so much.

    The root of a sum of squares is a norm: it differs by no more than the norm of the
    difference.  About a mean that is off by d, the mean square grows by d * d.
    """
    count = facts.columns
    mean = middle.mean(-1, keepdim=True) if facts.is_layer else 0.0
    root = ((middle - mean)[..., :count].square().sum(-1, keepdim=True)).sqrt()
    apart = spread[..., :count].square().sum(-1, keepdim=True).sqrt()
    slack = depth(facts.length) * U
    low = (root - apart).clamp(min=0.0).square() * (1 - slack - 2 * U)
    high = ((root + apart).square() + count * off.square()) * (1 + slack + 4 * U)
    return Interval(low / facts.over, high / facts.over)


def _factor(facts: Facts, s: Interval, to_io: Round) -> Interval:
    """f(s), or 1 / f(s) where the row is divided by it."""
    norm, eps = facts.norm, facts.eps

    def op(value: Interval) -> Interval:
        return to_io(value.computed())

    def plus_eps(value: Interval) -> Interval:
        made = op(value.rising(lambda v: v + eps))
        if not facts.eager:
            return made
        held = float(to_dtype(torch.tensor(eps), facts.io))
        return made.hull(op(value.rising(lambda v: v + held)))

    def at_least_eps(value: Interval) -> Interval:
        return to_io(value.rising(lambda v: v.clamp(min=eps)))

    def root(value: Interval) -> Interval:
        made = value.rising(torch.sqrt)
        return op(made.widened(2.0) if facts.eager else made)

    if facts.stepwise or not facts.root_is_first:
        s = to_io(s)
    if norm.max_norm is not None:
        bound = root(s)
        if facts.placement != "none":
            bound = plus_eps(bound)
        limit = float32(norm.max_norm)
        inverse = op(bound.inverse())  # torch divides a number by a tensor so
        ratio = op(Interval(limit * inverse.low, limit * inverse.high))
        return ratio.within(0.0, 1.0)
    if facts.placement in ("outside_sqrt", "clamp_norm"):
        length = root(s)
        outside = facts.placement == "outside_sqrt"
        bound = plus_eps(length) if outside else at_least_eps(length)
        return bound if facts.divides else op(bound.inverse())
    radicand = {
        "inside_sqrt": lambda: plus_eps(s),
        "clamp_stat": lambda: at_least_eps(s),
        "none": lambda: s,
    }[facts.placement]()
    if facts.divides:
        return root(radicand)
    inverse = to_io(radicand.rising(torch.sqrt).inverse().widened(RSQRT_ULPS))
    return inverse.hull(op(root(radicand).inverse())) if facts.eager else inverse


def _slope(facts: Facts, s: Interval, multiplier: Interval) -> Interval:
    """-2 f'(s) / f(s)^3, which is 1 where f = 1 / sqrt(s + eps)."""
    eps, near = facts.eps, NEAR[facts.precision]
    if facts.norm.rounding.rstd == "io":
        near = NEAR["io"]
    length = s.rising(torch.sqrt)
    one = torch.ones_like(s.low)
    if facts.placement == "outside_sqrt":
        # f = 1 / (r + eps): r / (r + eps) = 1 - eps * f, a multiple of U
        limit = 1.0 if facts.norm.max_norm is None else float32(facts.norm.max_norm)
        share = length.rising(lambda r: r / (r + eps))
        made = multiplier.rising(lambda f: eps * f / limit)
        share = share.hull(Interval(1 - made.high, 1 - made.low))
        share = Interval(share.low - 3 * U, share.high + 3 * U).within(U, 1.0)
        slope = share.inverse()
    else:
        slope = Interval(one, one)
    bound = {"clamp_norm": length, "clamp_stat": s}.get(facts.placement)
    if bound is not None:
        slope = Interval(
            (bound.low > eps * (1 + near)).double(),
            (bound.high >= eps * (1 - near)).double(),
        )
    if facts.norm.max_norm is not None:
        limit = float32(facts.norm.max_norm)
        reach = length.rising(lambda r: r + eps * (facts.placement != "none"))
        square = limit * limit
        clipped = (reach.low > limit * (1 + near)).double() * slope.low / square
        may_be = (reach.high >= limit * (1 - near)).double() * slope.high / square
        slope = Interval(clipped, may_be)
    return slope


def adjoint(facts: Facts, bounds: Bounds, dy: Interval) -> Interval:
    """The gradient of the rows, given that of x_hat."""
    slack = depth(facts.length) + 1
    product = (dy * bounds.normal).computed().sum(-1, slack)
    projection = Interval(product.low / facts.over, product.high / facts.over)
    along = ((projection * bounds.slope).computed() * bounds.direction).computed()
    along = along.widened(6.0)
    if facts.columns < facts.length:
        inside = torch.arange(facts.length, device=dy.low.device) < facts.columns
        along = Interval(
            torch.where(inside, along.low, 0.0), torch.where(inside, along.high, 0.0)
        )
    bracket = dy
    if facts.is_centered:
        total = dy.sum(-1, slack)
        mean = Interval(total.low / facts.length, total.high / facts.length)
        bracket = (bracket - mean).computed()
    return ((bracket - along).computed() * bounds.multiplier).computed()


def factor_adjoint(facts: Facts, bounds: Bounds, dy: Interval) -> Interval:
    """The gradient of the rows, given that of the factor, one number a row."""
    cube = bounds.multiplier * bounds.multiplier
    made = (-(dy * bounds.slope) * bounds.direction * cube).widened(8.0)
    return Interval(made.low / facts.over, made.high / facts.over).computed()
