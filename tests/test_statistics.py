"""Each statistic is its definition, and its adjoint the derivative, by autograd."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from formulas import evaluate, mutants

from normgen.statistics import Statistic, statistic

COLUMNS = 11
EPS = 0.125  # large, so that a misplaced one shows
KINDS = [
    *itertools.product(("rms_norm", "layer_norm"), ("inside_sqrt", "outside_sqrt"))
]


def scalars(stat) -> list[tuple[str, str]]:
    """What the adjoint makes of its row means, as kernels write it."""
    return [(value.name, value.kernel) for value in stat.adjoint_values]


def by_hand(x: torch.Tensor, variant: str, placement: str) -> torch.Tensor:
    """x_hat as the papers define it."""
    if variant == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    power = x.pow(2).sum(-1, keepdim=True) / COLUMNS
    if placement == "inside_sqrt":
        return x / torch.sqrt(power + EPS)
    return x / (torch.sqrt(power) + EPS)


def rows() -> torch.Tensor:
    """Rows of different scale and mean."""
    generator = torch.Generator().manual_seed(2)
    scale = torch.tensor([[0.03], [0.4], [1.0], [20.0]], dtype=torch.float64)
    x = torch.randn(4, COLUMNS, generator=generator, dtype=torch.float64) + 0.7
    return x * scale


def upstream(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64) + 0.4


def row_mean(term: torch.Tensor) -> torch.Tensor:
    return term.sum(-1, keepdim=True) / COLUMNS


def forward(stat: Statistic, x: torch.Tensor, form: str, mask=None) -> dict:
    """Every value of a statistic, by its formulas for the kernel or the reference."""
    known = {"x": x, "eps": EPS, "mask": torch.tensor(True) if mask is None else mask}
    for mean in stat.means:
        known[mean.name] = row_mean(evaluate(mean.term, known))
        for value in stat.values:
            if mean.name in getattr(value, form):
                known[value.name] = evaluate(getattr(value, form), known)
    known["rstd"] = evaluate(getattr(stat.rstd, form), known)
    known["x_hat"] = evaluate(stat.x_hat, known)
    return known


def backward(stat: Statistic, known: dict, dy: torch.Tensor) -> torch.Tensor:
    known = {**known, "dy": dy}
    for mean in stat.adjoint_means:
        known[mean.name] = row_mean(evaluate(mean.term, known))
    for name, formula in scalars(stat):
        known[name] = evaluate(formula, known)
    return evaluate(stat.adjoint, known)


def is_right(stat: Statistic, variant: str, placement: str) -> bool:
    x = rows().requires_grad_()
    expected = by_hand(x, variant, placement)
    dy = upstream(x)
    (gradient,) = torch.autograd.grad(expected, x, dy)
    for form in ("kernel", "reference"):
        known = forward(stat, x.detach(), form)
        found = known["x_hat"]
        if found.shape != x.shape or not torch.allclose(found, expected):
            return False
        if not torch.allclose(backward(stat, known, dy), gradient):
            return False
    return zeros_are_right(stat, variant)


def zeros_are_right(stat: Statistic, variant: str) -> bool:
    """x_hat of a row of zeros is 0, and linear about it."""
    x = torch.zeros(1, COLUMNS, dtype=torch.float64)
    known, dy = forward(stat, x, "kernel"), upstream(x)
    centred = dy - row_mean(dy) if variant == "layer_norm" else dy
    found = backward(stat, known, dy)
    return torch.equal(known["x_hat"], x) and torch.allclose(
        found, centred * known["rstd"]
    )


def wrong_statistics(stat: Statistic):
    """(what is wrong, the statistic) for every mutant of every formula."""
    early = ["x", *(m.name for m in stat.means), *(v.name for v in stat.values)]
    known = [*early, "rstd", "x_hat", "dy", *(m.name for m in stat.adjoint_means)]
    known += [name for name, _ in scalars(stat)]
    for field in ("means", "adjoint_means"):
        means = getattr(stat, field)
        for i, mean in enumerate(means):
            for wrong in mutants(mean.term, known if "adjoint" in field else early):
                changed = replace(mean, term=wrong)
                made = (*means[:i], changed, *means[i + 1 :])
                yield f"{mean.name} = mean({wrong})", replace(stat, **{field: made})
    for value in (*stat.values, stat.rstd):
        for form in ("kernel", "reference"):
            for wrong in mutants(getattr(value, form), early):
                changed = replace(value, **{form: wrong})
                is_rstd = value is stat.rstd
                field = {"rstd": changed} if is_rstd else {"values": (changed,)}
                yield f"{form} {value.name} = {wrong}", replace(stat, **field)
    for wrong in mutants(stat.x_hat, [*early, "rstd"]):
        yield f"x_hat = {wrong}", replace(stat, x_hat=wrong)
    for name, formula in scalars(stat):
        for wrong in mutants(formula, [n for n in known if n != name]):
            yield (
                f"{name} = {wrong}",
                replace(
                    stat,
                    adjoint_values=(replace(stat.adjoint_values[0], kernel=wrong),),
                ),
            )
    for wrong in mutants(stat.adjoint, known):
        yield f"dx = {wrong}", replace(stat, adjoint=wrong)


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_value_and_adjoint_are_right(kind) -> None:
    assert is_right(statistic(*kind), *kind)


def notices(mutant: Statistic, kind) -> bool:
    try:
        return not is_right(mutant, *kind)
    except (NameError, KeyError, TypeError, AttributeError, RuntimeError):
        return True  # a name before it is made: Python itself notices


#: What computes the same: the squares may be taken about any mean on one side, and the
#: mask has a test of its own.
EQUIVALENT = {
    "variance = mean(x * centered)",
    "variance = mean(centered * x)",
    "kernel centered = x - mean",
}


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_every_wrong_formula_is_noticed(kind) -> None:
    wrong = list(wrong_statistics(statistic(*kind)))
    assert len(wrong) > 60
    survivors = {text for text, mutant in wrong if not notices(mutant, kind)}
    assert survivors <= EQUIVALENT


@pytest.mark.parametrize("placement", ["inside_sqrt", "outside_sqrt"])
def test_columns_beyond_the_end_of_a_row_do_not_count(placement: str) -> None:
    """A block is wider than its row: what lies beyond it is loaded as 0."""
    stat = statistic("layer_norm", placement)
    x, pad = rows(), torch.zeros(4, 5, dtype=torch.float64)
    mask = torch.arange(COLUMNS + 5) < COLUMNS
    plain, known = (
        forward(stat, x, "kernel"),
        forward(stat, torch.cat([x, pad], -1), "kernel", mask),
    )
    for name in ("mean", "variance", "rstd"):
        assert torch.allclose(known[name], plain[name])
    assert torch.equal(known["x_hat"][:, COLUMNS:], pad)
    dy = upstream(x)
    found = backward(stat, known, torch.cat([dy, pad], -1))
    assert torch.allclose(found[:, :COLUMNS], backward(stat, plain, dy))


@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.125, 1.0])
def test_a_row_of_zeros_has_finite_gradients_in_float32(variant, eps) -> None:
    stat = statistic(variant, "outside_sqrt")
    x = torch.zeros(2, COLUMNS)
    rstd = torch.full((2, 1), 1 / eps, dtype=torch.float64).float()
    known = {"x_hat": x, "centered": x, "rstd": rstd, "eps": eps}
    assert backward(stat, known, upstream(x).float()).isfinite().all()


@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
def test_the_limit_for_rows_of_zeros_changes_no_other_row(variant) -> None:
    """float32 follows float64 for rows from 1e-10 to 1e3 times eps."""
    stat = statistic(variant, "outside_sqrt")
    scale = torch.logspace(-10, 3, 14, dtype=torch.float64)[:, None]
    x = rows()[2:3] * scale * EPS
    x, dy = x.float(), upstream(x).float()
    wide = forward(stat, x.double(), "kernel")
    exact = backward(stat, wide, dy.double())
    found = backward(stat, forward(stat, x, "kernel"), dy)
    bound = 16 * 2.0**-24 * dy.abs().amax() * wide["rstd"]
    assert ((found - exact).abs() <= bound).all()


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_what_the_backward_pass_needs_is_saved(kind) -> None:
    """x_hat can be made again of x and what is saved."""
    stat = statistic(*kind)
    known = forward(stat, rows(), "kernel")
    again = {name: known[name] for name in (*stat.saved, "x", "mask")}
    for value in stat.values:
        again[value.name] = evaluate(value.kernel, again)
    assert torch.equal(evaluate(stat.x_hat, again), known["x_hat"])
