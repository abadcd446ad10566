"""The statistic of a row: from ``x`` to ``x_hat``, and back.

A statistic is made of parts in order: reductions over the row, and values made of them
and of the row.  ``s`` is the last reduction, a mean or a sum of squares, and the factor
is f(s): x_hat = c * f(s), where c is x or x - mean.

The adjoint (Ba et al., 2016; Zhang and Sennrich, 2019, for RMS) is

    dx = (dx_hat - mean(dx_hat) - x_hat * slope) * f

without the second term where nothing was centered.  With ds = 2 c dx / N the slope is
mean(dx_hat * x_hat) * k, where k = -2 f'(s) / f^3: 1 for f = 1 / sqrt(s + eps) or
1 / sqrt(s); 1 / (1 - eps f) for 1 / (sqrt(s) + eps); and 0 where a bound holds s or its
root.  A row clipped to the norm T has f = T / (norm + eps) < 1 and
k = 1 / (T^2 (1 - eps f / T)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from normgen.expr import names, substitute
from normgen.notation import FUNCTIONS

if TYPE_CHECKING:
    from normgen.spec import Norm


@dataclass(frozen=True)
class Reduction:
    """The sum of ``term`` over a row, divided by ``over``.

    ``over`` is a count of columns in terms of ``N``, all of them, or empty for a sum.
    ``columns`` limits the sum to the first so many.  ``wide`` terms are float32 where
    other values have the dtype of x.
    """

    name: str
    term: str
    over: str = "N"
    columns: int | None = None
    wide: bool = False


@dataclass(frozen=True)
class Value:
    """A named value; one that ``rounds`` does so to the dtype of x."""

    name: str
    formula: str
    rounds: bool = False


@dataclass(frozen=True)
class Statistic:
    """Parts in order, x_hat, and the adjoint with reductions of its own.

    x_hat is made of the ``numerator``.  ``saved`` parts are what the backward pass
    needs again, the factor last.  In ``adjoint_means`` and ``adjoint``, ``dy`` is the
    gradient of x_hat; in ``factor_adjoint`` the projection is that of the factor.
    ``notation`` is x_hat as a paper writes it, of ``{x}`` and ``{eps}``.
    """

    parts: tuple[Reduction | Value, ...]
    numerator: str
    x_hat: Value
    saved: tuple[str, ...]
    adjoint_means: tuple[Reduction, ...]
    adjoint_values: tuple[Value, ...]
    adjoint: str
    factor_adjoint: str
    notation: str

    @property
    def means(self) -> tuple[Reduction, ...]:
        """The reductions, in order."""
        return tuple(part for part in self.parts if isinstance(part, Reduction))

    @property
    def values(self) -> tuple[Value, ...]:
        """The values, in order."""
        return tuple(part for part in self.parts if isinstance(part, Value))

    @property
    def factor(self) -> str:
        """What a row is multiplied with, or divided by."""
        return self.saved[-1]

    @property
    def per_row(self) -> frozenset[str]:
        """The parts that are one number a row."""
        found = {mean.name for mean in self.means}
        for value in self.values:
            if names(value.formula) <= {*found, "eps", *FUNCTIONS}:
                found.add(value.name)
        return frozenset(found)


@dataclass(frozen=True)
class Moment:
    """The parts up to ``s``; ``deviation`` is what its squares are of."""

    parts: tuple[Reduction | Value, ...]
    numerator: str
    s: Reduction
    deviation: str


#: Where 1 - eps f is 0, for a row of zeros, x_hat is 0 too: half a unit in the last
#: place of 1 keeps the product 0 and changes nothing else.
TINY = 2.0**-24
#: How near its bound a value counts as bound: beyond all roundings of either.
NEAR = {"float32": 0.999999, "io": 0.99, "io_stepwise": 0.99}
DENOMINATORS = {"rms_norm": "rms", "layer_norm": "std", "l2_norm": "norm"}
#: where the root of s is taken first
OF_ROOT = ("outside_sqrt", "clamp_norm", "none")


def statistic(norm: Norm) -> Statistic:
    """The statistic that a spec asks for."""
    moment = layer_moment(norm) if norm.variant == "layer_norm" else square_moment(norm)
    root = root_of(norm, moment.s.name)
    factor = root[-1].name
    by = "/" if norm.statistics.root == "sqrt" else "*"
    centered = norm.variant == "layer_norm" and norm.statistics.centered
    projection = Reduction("projection", "dy * x_hat", moment.s.over)
    slope = slope_of(norm, factor)
    direction = "x_hat"
    if norm.variant == "layer_norm" and not centered:
        direction = f"{moment.deviation} {by} {factor}"
    along = f"{direction} * {slope[-1].name if slope else 'projection'}"
    if moment.s.columns is not None:
        along = f"where(cols < {moment.s.columns}, {along}, 0.0)"
    return Statistic(
        parts=(*moment.parts, *root),
        numerator=moment.numerator,
        x_hat=Value("x_hat", f"{moment.numerator} {by} {factor}", _rounds(norm)),
        saved=("mean", factor) if norm.variant == "layer_norm" else (factor,),
        adjoint_means=(
            *([Reduction("mean_dx_hat", "dy")] if centered else []),
            projection,
        ),
        adjoint_values=slope,
        adjoint=f"(dy{' - mean_dx_hat' if centered else ''} - {along}) {by} {factor}",
        factor_adjoint=factor_adjoint(moment, factor, bool(slope)),
        notation=notation(norm),
    )


def _rounds(norm: Norm) -> bool:
    return norm.statistics.precision != "float32"


def square_moment(norm: Norm) -> Moment:
    """The mean or sum of squares."""
    stepwise = norm.statistics.precision == "io_stepwise"
    columns = None if norm.statistics.columns == "all" else norm.statistics.columns
    name, over = "sum_square", ""
    if norm.variant == "rms_norm":
        name, over = "mean_square", "N" if columns is None else str(columns)
    squares = (Value("square", "x * x", rounds=True),) if stepwise else ()
    s = Reduction(
        name,
        "square" if stepwise else "x * x",
        over,
        columns,
        wide=norm.statistics.precision == "io",
    )
    return Moment((*squares, s), "x", s, "x")


def layer_moment(norm: Norm) -> Moment:
    """The mean, and the variance about it, in two passes.

    In float32 and stepwise it is about the mean that centers the row; with precision io
    about the mean as it was before it was rounded.
    """
    precision = norm.statistics.precision
    over = "N - 1" if norm.statistics.variance == "unbiased" else "N"
    wide = precision == "io"
    mean = Reduction("mean", "x", wide=wide)
    rounded = Value("mean_io", "mean", rounds=True)
    if precision == "float32":
        centered = Value("centered", "masked(x - mean)")
        s = Reduction("variance", "centered * centered", over)
        parts: tuple[Reduction | Value, ...] = (mean, centered, s)
    elif wide:
        deviation = Value("deviation", "masked(x - mean)")
        s = Reduction("variance", "deviation * deviation", over, wide=True)
        centered = Value("centered", "masked(x - mean_io)", rounds=True)
        parts = (mean, deviation, s)
        if norm.statistics.centered:
            parts = (*parts, rounded, centered)
    else:
        centered = Value("centered", "masked(x - mean_io)", rounds=True)
        square = Value("square", "centered * centered", rounds=True)
        s = Reduction("variance", "square", over)
        parts = (mean, rounded, centered, square, s)
    numerator = "centered" if norm.statistics.centered else "x"
    return Moment(parts, numerator, s, "deviation" if wide else "centered")


def root_of(norm: Norm, s: str) -> tuple[Value, ...]:
    """From s to the factor: one value in float32, else one for every rounding or, of
    a clipped row, for every step."""
    made: list[tuple[str, str]] = []
    of_root = norm.eps_placement in OF_ROOT
    if norm.statistics.precision == "io_stepwise" or (_rounds(norm) and not of_root):
        made.append((f"{s}_io", s))
        s = f"{s}_io"
    if norm.max_norm is not None:
        made += _clip(norm, s)
        return tuple(Value(*value, rounds=_rounds(norm)) for value in made)
    made += _inverse(norm, s)
    if _rounds(norm):
        return tuple(Value(*value, rounds=True) for value in made)
    folded = ""
    known: dict[str, str] = {}
    for name, formula in made:
        folded = substitute(formula, known)
        known[name] = folded
    if norm.rounding.rstd == "io":
        return (Value("inverse", folded), Value("rstd", "inverse", rounds=True))
    return (Value(made[-1][0], folded),)


def _inverse(norm: Norm, s: str) -> list[tuple[str, str]]:
    denominator, divides = DENOMINATORS[norm.variant], norm.statistics.root == "sqrt"
    if norm.eps_placement == "none":
        return [(denominator, f"sqrt({s})")] if divides else [("rstd", f"rsqrt({s})")]
    if norm.eps_placement in OF_ROOT:
        bound = {"outside_sqrt": "length + eps", "clamp_norm": "max(length, eps)"}
        made = [("length", f"root({s})"), (denominator, bound[norm.eps_placement])]
        return made if divides else [*made, ("rstd", f"1.0 / {denominator}")]
    radicand = {"inside_sqrt": f"{s} + eps", "clamp_stat": f"max({s}, eps)"}
    made = [("radicand", radicand[norm.eps_placement])]
    root = (denominator, "sqrt(radicand)") if divides else ("rstd", "rsqrt(radicand)")
    return [*made, root]


def _clip(norm: Norm, s: str) -> list[tuple[str, str]]:
    length, bound = [("length", f"root({s})")], "length"
    if norm.eps_placement != "none":
        length.append(("bound", "length + eps"))
        bound = "bound"
    return [
        *length,
        ("inverse", f"1.0 / {bound}"),  # torch divides a number by a tensor so
        ("ratio", f"inverse * {norm.max_norm!r}"),
        ("clip", "min(ratio, 1.0)"),
    ]


def slope_of(norm: Norm, factor: str) -> tuple[Value, ...]:
    """The slope, in steps, where it is not the projection itself."""
    rounds = norm.rounding.rstd == "io"
    near = NEAR["io" if rounds else norm.statistics.precision]
    divides = norm.statistics.root == "sqrt"
    eps_factor = f"eps / {factor}" if divides else f"eps * {factor}"
    if norm.max_norm is not None:
        limit, square = repr(norm.max_norm), repr(norm.max_norm * norm.max_norm)
        if norm.eps_placement == "none":
            free = f"projection / {square}"
            return (Value("slope", f"where({factor} < 1.0, {free}, 0.0)"),)
        return (
            Value("spare", f"1.0 - {eps_factor} / {limit}"),
            Value("share", f"max(spare, {TINY})"),
            Value("bounded", f"{square} * share"),
            Value("slope", f"where({factor} < 1.0, projection / bounded, 0.0)"),
        )
    if norm.eps_placement == "outside_sqrt":
        return (
            Value("share", f"max(1.0 - {eps_factor}, {TINY})"),
            Value("slope", "projection / share"),
        )
    power = {"clamp_norm": 1, "clamp_stat": 2}.get(norm.eps_placement)
    if power is None:
        return ()
    powers = " * ".join([factor] * power)
    free = f"{powers} * {near} > eps" if divides else f"{powers} * eps < {near}"
    return (Value("slope", f"where({free}, projection, 0.0)"),)


def factor_adjoint(moment: Moment, factor: str, sloped: bool) -> str:
    """dx = -c f^3 k df / N, given the gradient df of a factor that rows are multiplied
    with; the projection stands for df."""
    slope = "slope" if sloped else "projection"
    row = f"{slope} * {factor} * {factor} * {factor}"
    row = f"{row} / ({moment.s.over})" if moment.s.over else row
    return f"-{moment.deviation} * ({row})"


def notation(norm: Norm) -> str:
    """x_hat as a paper writes it."""
    columns = norm.statistics.columns
    squares = "{x}^2" if columns == "all" else f"{{x}}[:{columns}]^2"
    s = {
        "rms_norm": f"mean({squares})",
        "l2_norm": f"sum({squares})",
        "layer_norm": "var({x})",
    }[norm.variant]
    if norm.statistics.variance == "unbiased":
        s = "var({x}, unbiased)"
    if norm.max_norm is not None:
        bound = (
            f"sqrt({s})" if norm.eps_placement == "none" else f"(sqrt({s}) + {{eps}})"
        )
        return f"{{x}} * min(1, {norm.max_norm!r} / {bound})"
    root = {
        "inside_sqrt": f"sqrt({s} + {{eps}})",
        "outside_sqrt": f"(sqrt({s}) + {{eps}})",
        "clamp_norm": f"max(sqrt({s}), {{eps}})",
        "clamp_stat": f"sqrt(max({s}, {{eps}}))",
        "none": f"sqrt({s})",
    }[norm.eps_placement]
    centered = norm.variant == "layer_norm" and norm.statistics.centered
    return f"({{x}} - mean({{x}})) / {root}" if centered else f"{{x}} / {root}"
