"""The statistic of a row: from ``x`` to ``x_hat``, and back.

``means`` are taken over the row one after the other; each may read those before it and
the ``values`` made of them.  rstd is the factor that the last mean gives.

The adjoint of x_hat = (x - mean) * rstd (Ba et al., 2016; Zhang and Sennrich, 2019, for
RMS) is dx = (dx_hat - mean(dx_hat) - x_hat * mean(dx_hat * x_hat)) * rstd, without the
second term where nothing was centred.  With eps outside the root, rstd = 1 / (std +
eps) and the last mean is divided by std * rstd = 1 - eps * rstd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normgen.expr import substitute


@dataclass(frozen=True)
class Mean:
    """The mean of ``term`` over a row."""

    name: str
    term: str


@dataclass(frozen=True)
class Value:
    """A named formula, as Triton, eager torch and a docstring write it."""

    name: str
    kernel: str
    reference: str
    prose: str


@dataclass(frozen=True)
class Statistic:
    """Row means, the factor rstd, x_hat, and the adjoint with row means of its own.

    In ``adjoint_means`` and ``adjoint``, ``dy`` is the gradient of x_hat.
    """

    means: tuple[Mean, ...]
    values: tuple[Value, ...]
    rstd: Value
    x_hat: str
    saved: tuple[str, ...]
    adjoint_means: tuple[Mean, ...]
    adjoint_values: tuple[Value, ...]
    adjoint: str


_PROJECTION = Mean("projection", "dy * x_hat")


def statistic(
    variant: Literal["rms_norm", "layer_norm"],
    eps_placement: Literal["inside_sqrt", "outside_sqrt"],
) -> Statistic:
    """The statistic of a variant, with its inverse root."""
    inverse_root = {"inside_sqrt": _inside_sqrt, "outside_sqrt": _outside_sqrt}
    return inverse_root[eps_placement](_CENTERINGS[variant])


def _inside_sqrt(centering: Statistic) -> Statistic:
    return centering


def _outside_sqrt(centering: Statistic) -> Statistic:
    # 1 - eps * rstd is 0 for a row of zeros, where x_hat is 0 too: 2**-24, half a unit
    # in the last place of 1, keeps the product 0 and changes nothing else.
    s = centering.means[-1].name
    return Statistic(
        means=centering.means,
        values=centering.values,
        rstd=Value(
            "rstd",
            f"1.0 / (tl.sqrt_rn({s}) + eps)",
            f"1.0 / (torch.sqrt({s}.clamp(min=1e-45)) + eps)",
            f"1 / (sqrt({s}) + eps)",
        ),
        x_hat=centering.x_hat,
        saved=centering.saved,
        adjoint_means=centering.adjoint_means,
        adjoint_values=(
            Value(
                "slope",
                f"projection / tl.maximum(1.0 - eps * rstd, {2.0**-24})",
                f"projection / (1.0 - eps * rstd).clamp(min={2.0**-24})",
                f"projection / max(1.0 - eps * rstd, {2.0**-24:.1e})",
            ),
        ),
        adjoint=substitute(centering.adjoint, {"projection": "slope"}),
    )


_CENTERINGS = {
    "rms_norm": Statistic(
        means=(Mean("mean_square", "x * x"),),
        values=(),
        rstd=Value(
            "rstd",
            "tl.rsqrt(mean_square + eps)",
            "torch.rsqrt(mean_square + eps)",
            "1 / sqrt(mean_square + eps)",
        ),
        x_hat="x * rstd",
        saved=("rstd",),
        adjoint_means=(_PROJECTION,),
        adjoint_values=(),
        adjoint="(dy - x_hat * projection) * rstd",
    ),
    # Two passes: the squares are taken about the mean, and are 0 beyond the row's end.
    "layer_norm": Statistic(
        means=(Mean("mean", "x"), Mean("variance", "centered * centered")),
        values=(
            Value("centered", "tl.where(mask, x - mean, 0.0)", "x - mean", "x - mean"),
        ),
        rstd=Value(
            "rstd",
            "tl.rsqrt(variance + eps)",
            "torch.rsqrt(variance + eps)",
            "1 / sqrt(variance + eps)",
        ),
        x_hat="centered * rstd",
        saved=("mean", "rstd"),
        adjoint_means=(Mean("mean_dx_hat", "dy"), _PROJECTION),
        adjoint_values=(),
        adjoint="(dy - mean_dx_hat - x_hat * projection) * rstd",
    ),
}
