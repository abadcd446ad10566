"""Each statistic is its definition, and its adjoint the derivative, by autograd."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from formulas import LANGUAGES, evaluate, mutants
from pydantic import ValidationError
from support.build import make

from normgen import graph
from normgen.expr import names, substitute
from normgen.spec import Norm
from normgen.statistics import Reduction, Statistic, Value, statistic

COLUMNS = 11
EPS = 0.125  # large, so that a misplaced one shows
LIMIT = 2.5

AXES: dict[str, tuple[Any, ...]] = {
    "variant": ("rms_norm", "layer_norm", "l2_norm"),
    "eps_placement": (
        *("inside_sqrt", "outside_sqrt", "clamp_norm", "clamp_stat", "none"),
    ),
    "statistics.precision": ("float32", "io", "io_stepwise"),
    "statistics.root": ("rsqrt", "sqrt"),
    "statistics.centered": (True, False),
    "statistics.variance": ("biased", "unbiased"),
    "statistics.columns": ("all", 4),
    "max_norm": (None, LIMIT),
    "rounding.rstd": ("none", "io"),
    "output": ("normalized", "factor"),
}


def combinations() -> Iterator[tuple[str, Norm]]:
    """Every combination that the rules allow, by what is not a default."""
    for values in itertools.product(*AXES.values()):
        fields = {
            axis: value
            for axis, value in zip(AXES, values, strict=True)
            if axis in ("variant", "eps_placement") or value != AXES[axis][0]
        }
        if fields.get("output") == "factor":
            fields["affine.weight"] = "none"
        if fields["eps_placement"] != "none":
            fields["eps"] = EPS
        try:
            norm = make(hidden_size=COLUMNS, **fields)
        except ValidationError:
            continue
        known = {k: v for k, v in fields.items() if k not in ("eps", "affine.weight")}
        yield ",".join(map(str, known.values())), norm


NORMS = dict(combinations())
FACTORS = {name: norm for name, norm in NORMS.items() if norm.output == "factor"}
ROWS = {name: norm for name, norm in NORMS.items() if norm.output == "normalized"}
every_row = pytest.mark.parametrize("name", ROWS)
every_factor = pytest.mark.parametrize("name", FACTORS)


def test_all_values_are_combined_as_far_as_the_rules_allow() -> None:
    assert len(ROWS) > 200
    assert len(FACTORS) > 40
    for field in AXES:
        found = set()
        for norm in NORMS.values():
            block, _, inner = field.partition(".")
            value = getattr(norm, block)
            found.add(getattr(value, inner) if inner else value)
        assert found == set(AXES[field]), field


def root(s: torch.Tensor) -> torch.Tensor:
    """The square root, whose gradient at 0 is taken to be 0."""
    return torch.where(s > 0, torch.where(s > 0, s, 1.0).sqrt(), 0.0)


def by_hand(
    norm: Norm, x: torch.Tensor, eps: float = EPS
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x_hat, the factor) as the papers define them."""
    how, length = norm.statistics, x.shape[-1]
    row = x
    if norm.variant == "layer_norm":
        deviation = x - x.sum(-1, keepdim=True) / length
        s = deviation.pow(2).sum(-1, keepdim=True)
        s = s / (length - 1 if how.variance == "unbiased" else length)
        row = deviation if how.centered else x
    else:
        first = x if how.columns == "all" else x[..., : how.columns]
        s = first.pow(2).sum(-1, keepdim=True)
        s = s / first.shape[-1] if norm.variant == "rms_norm" else s
    denominator = {
        "inside_sqrt": lambda: torch.sqrt(s + eps),
        "outside_sqrt": lambda: root(s) + eps,
        "clamp_norm": lambda: torch.clamp(root(s), min=eps),
        "clamp_stat": lambda: torch.sqrt(torch.clamp(s, min=eps)),
        "none": lambda: root(s),
    }[norm.eps_placement]()
    if norm.max_norm is not None:
        factor = torch.clamp(norm.max_norm / denominator, max=1.0)
        return row * factor, factor
    return row / denominator, 1.0 / denominator


def rows(norm: Norm, columns: int = COLUMNS) -> torch.Tensor:
    """Rows of different scale and mean: some that every bound holds, one of zeros."""
    generator = torch.Generator().manual_seed(2)
    scale = torch.logspace(-2, 1.3, 24, dtype=torch.float64)
    scale = torch.cat([torch.zeros(1, dtype=torch.float64), scale])[:, None]
    x = torch.randn(25, columns, generator=generator, dtype=torch.float64)
    x = (x + torch.linspace(-1.3, 1.7, 25, dtype=torch.float64)[:, None]) * scale
    return x[1:] if norm.eps_placement == "none" and norm.max_norm is None else x


def upstream(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64) + 0.4


def reduced(reduction: Reduction, known: dict[str, Any], language: str) -> torch.Tensor:
    term = evaluate(reduction.term, known, language)
    if reduction.columns is not None:
        term = torch.where(known["cols"] < reduction.columns, term, 0.0)
    total = term.sum(-1, keepdim=True)
    return total / evaluate(reduction.over, known) if reduction.over else total


def forward(
    stat: Statistic, x: torch.Tensor, language: str, length: int | None = None
) -> dict[str, Any]:
    """Every part of a statistic, by its formulas, in order; then x_hat."""
    cols, length = torch.arange(x.shape[-1]), length or x.shape[-1]
    known = {"x": x, "eps": EPS, "N": length, "cols": cols, "mask": cols < length}
    for part in stat.parts:
        if isinstance(part, Reduction):
            known[part.name] = reduced(part, known, language)
        else:
            known[part.name] = evaluate(part.formula, known, language)
    return {**known, "x_hat": evaluate(stat.x_hat.formula, known, language)}


def backward(
    stat: Statistic, known: dict[str, Any], dy: torch.Tensor, language: str
) -> torch.Tensor:
    """dx from dx_hat, and what the forward pass knew."""
    known = {**known, "dy": dy}
    for mean in stat.adjoint_means:
        known[mean.name] = reduced(mean, known, language)
    for value in stat.adjoint_values:
        known[value.name] = evaluate(value.formula, known, language)
    return evaluate(stat.adjoint, known, language)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(
        found, expected, rtol=1e-9, atol=1e-12
    )


def is_right(norm: Norm, stat: Statistic, columns: int = COLUMNS) -> bool:
    """Whether value and adjoint are those of the definition, in both languages."""
    x = rows(norm, columns).requires_grad_()
    expected, _ = by_hand(norm, x)
    dy = upstream(x)
    (gradient,) = torch.autograd.grad(expected, x, dy)
    for language in LANGUAGES:
        known = forward(stat, x.detach(), language)
        if not close(known["x_hat"], expected.detach()):
            return False
        if not close(backward(stat, known, dy, language), gradient):
            return False
    return True


@every_row
def test_value_and_adjoint_are_right(name: str) -> None:
    norm = ROWS[name]
    assert is_right(norm, statistic(norm))


def takes_one_column(norm: Norm) -> bool:
    """Whether a row of one column has a value: one without spread may have none."""
    spread = norm.variant != "layer_norm" or norm.eps_placement != "none"
    whole = norm.statistics.columns == "all"
    return spread and whole and norm.statistics.variance == "biased"


ONE_COLUMN = [name for name, norm in ROWS.items() if takes_one_column(norm)]


@pytest.mark.parametrize("name", ONE_COLUMN)
def test_value_and_adjoint_of_rows_of_one_column_are_right(name: str) -> None:
    norm = ROWS[name]
    assert is_right(norm, statistic(norm), columns=1)


def bounds(norm: Norm) -> tuple[bool, bool]:
    """Whether the rows have one that a bound holds, and one that it does not."""
    _, factor = by_hand(norm, rows(norm))
    held = factor == factor.amax()
    return int(held.sum()) > 1, not bool(held.all())


@pytest.mark.parametrize("placement", ["clamp_norm", "clamp_stat"])
@pytest.mark.parametrize("variant", AXES["variant"])
def test_the_rows_of_these_tests_lie_on_both_sides_of_a_bound(
    variant: str, placement: str
) -> None:
    fields = {"variant": variant, "eps_placement": placement, "eps": EPS}
    assert bounds(make(hidden_size=COLUMNS, **fields)) == (True, True)


def test_the_rows_of_these_tests_lie_on_both_sides_of_the_largest_norm() -> None:
    fields = {"variant": "l2_norm", "max_norm": LIMIT, "eps_placement": "none"}
    assert bounds(make(hidden_size=COLUMNS, **fields)) == (True, True)


def factor_gradient(
    stat: Statistic, known: dict[str, Any], df: torch.Tensor, language: str
) -> torch.Tensor:
    """dx from the gradient of the factor."""
    known = {**known, "projection": df}
    for value in stat.adjoint_values:
        known[value.name] = evaluate(value.formula, known, language)
    return evaluate(stat.factor_adjoint, known, language)


def factor_is_right(norm: Norm, stat: Statistic) -> bool:
    x = rows(norm).requires_grad_()
    _, expected = by_hand(norm, x)
    df = upstream(x)[:, :1]
    (gradient,) = torch.autograd.grad(expected, x, df)
    for language in LANGUAGES:
        known = forward(stat, x.detach(), language)
        if not close(known[stat.factor], expected.detach()):
            return False
        if not close(factor_gradient(stat, known, df, language), gradient):
            return False
    return True


@every_factor
def test_the_factor_alone_and_its_gradient_are_right(name: str) -> None:
    norm = FACTORS[name]
    assert factor_is_right(norm, statistic(norm))


def wrong_statistics(stat: Statistic) -> Iterator[tuple[str, Statistic]]:
    """(what is wrong, the statistic) for every mutant of every formula."""
    early = ["x", *(part.name for part in stat.parts)]
    means = [mean.name for mean in stat.adjoint_means]
    late = [*early, "x_hat", "dy", *means, *(v.name for v in stat.adjoint_values)]
    for field, known in (
        ("parts", early),
        ("adjoint_means", late),
        ("adjoint_values", late),
    ):
        made = getattr(stat, field)
        for i, part in enumerate(made):
            for text, changed in wrong_parts(part, known):
                swapped = (*made[:i], changed, *made[i + 1 :])
                yield text, replace(stat, **{field: swapped})
    for wrong in mutants(stat.x_hat.formula, early):
        yield (
            f"x_hat = {wrong}",
            replace(stat, x_hat=replace(stat.x_hat, formula=wrong)),
        )
    for wrong in mutants(stat.adjoint, late):
        yield f"dx = {wrong}", replace(stat, adjoint=wrong)


def wrong_parts(
    part: Reduction | Value, known: list[str]
) -> Iterator[tuple[str, Reduction | Value]]:
    if isinstance(part, Value):
        for wrong in mutants(part.formula, known):
            yield f"{part.name} = {wrong}", replace(part, formula=wrong)
        return
    for wrong in mutants(part.term, known):
        yield f"{part.name} = sum({wrong})", replace(part, term=wrong)
    for wrong in {"", "N", "N - 1", "4"} - {part.over}:
        yield f"{part.name} = sum / ({wrong})", replace(part, over=wrong)
    for columns in {None, 4, 5} - {part.columns}:
        yield f"{part.name} of {columns}", replace(part, columns=columns)


def alike(norm: Norm, stat: Statistic) -> dict[str, str]:
    """Names of equal values without any rounding -> the first of them."""
    known = forward(stat, rows(norm), "triton")
    made = {name: known[name] for name in ("x", *(part.name for part in stat.parts))}
    return {
        name: next(n for n, other in made.items() if torch.equal(value, other))
        for name, value in made.items()
    }


def plain(text: str, same: dict[str, str]) -> str:
    """A line with the names of equal values made one, and without its mask."""
    target, _, formula = text.partition(" = ")
    formula = re.sub(r"masked\((.*?)\)", r"(\1)", formula)
    formula = re.sub(r"[a-z]\w*", lambda name: same.get(name[0], name[0]), formula)
    return f"{target} = {ast.unparse(ast.parse(formula))}"


def lines(stat: Statistic) -> Iterator[str]:
    """What stands in a statistic, as :func:`wrong_statistics` tells it."""
    for part in (*stat.parts, *stat.adjoint_means, *stat.adjoint_values, stat.x_hat):
        is_sum = isinstance(part, Reduction)
        yield f"{part.name} = " + (f"sum({part.term})" if is_sum else part.formula)
    yield f"dx = {stat.adjoint}"


def fails(check, *arguments) -> bool:
    try:
        return not check(*arguments)
    except (NameError, KeyError, TypeError, AttributeError, RuntimeError):
        return True  # a name before it is made: Python itself notices


#: What computes the same: squares may be taken about any mean on one side; what a
#: bound holds may be told before it is held, and without the room for roundings.
EQUIVALENT = re.compile(
    r"variance = sum\(\(?x( - mean)?\)? \* \w+\)|variance = sum\(\w+ \* x\)"
    r"|square = (x \* centered|centered \* x)"
    r"|slope = where\((length \* [\d.]+|norm|rms|std) > eps, projection, 0\.0\)"
    r"|share = 1\.0 - eps \* ratio / 2\.5"
    r"|slope = where\(ratio < 1\.0, projection / [\w.]+, 0\.0\)"
)
MUTATED = list(ROWS)[::3]


@pytest.mark.parametrize("name", MUTATED)
def test_every_wrong_formula_is_noticed(name: str) -> None:
    norm = ROWS[name]
    stat = statistic(norm)
    same = alike(norm, stat)
    right = {plain(line, same) for line in lines(stat)}
    wrong = [w for w in wrong_statistics(stat) if plain(w[0], same) not in right]
    assert len(wrong) > 40
    survivors = {text for text, made in wrong if not fails(is_right, norm, made)}
    assert {s for s in survivors if not EQUIVALENT.fullmatch(plain(s, same))} == set()


@pytest.mark.parametrize("name", FACTORS)
def test_every_wrong_gradient_of_the_factor_is_noticed(name: str) -> None:
    norm = FACTORS[name]
    stat = statistic(norm)
    known = ["x", "projection", *(part.name for part in stat.parts)]
    known += [value.name for value in stat.adjoint_values]
    same = alike(norm, stat)
    right = plain(f"dx = {ast.unparse(ast.parse(stat.factor_adjoint))}", same)
    wrong = [
        (text, replace(stat, factor_adjoint=text))
        for text in mutants(stat.factor_adjoint, known)
        if plain(f"dx = {text}", same) != right
    ]
    assert len(wrong) > 10
    survivors = {t for t, made in wrong if not fails(factor_is_right, norm, made)}
    assert not survivors


@every_row
def test_columns_beyond_the_end_of_a_row_do_not_count(name: str) -> None:
    """A block is wider than its row: what lies beyond it is loaded as 0."""
    norm = ROWS[name]
    stat = statistic(norm)
    x = rows(norm)
    pad = torch.zeros(len(x), 5, dtype=torch.float64)
    plain = forward(stat, x, "triton")
    known = forward(stat, torch.cat([x, pad], -1), "triton", length=COLUMNS)
    for mean in stat.means:
        assert torch.allclose(known[mean.name], plain[mean.name])
    assert torch.equal(known["x_hat"][:, COLUMNS:], pad)
    dy = upstream(x)
    found = backward(stat, known, torch.cat([dy, pad], -1), "triton")
    assert torch.allclose(found[:, :COLUMNS], backward(stat, plain, dy, "triton"))


@every_row
def test_what_the_backward_pass_needs_is_saved(name: str) -> None:
    """Beside what is saved it makes values of the row alone, and no reduction."""
    stat = statistic(ROWS[name])
    known = forward(stat, rows(ROWS[name]), "triton")
    again = {key: known[key] for key in (*stat.saved, "x", "mask", "eps", "N", "cols")}
    needed = names(stat.x_hat.formula).union(
        names(stat.adjoint),
        *(names(mean.term) for mean in stat.adjoint_means),
        *(names(value.formula) for value in stat.adjoint_values),
    )
    for part in reversed(stat.parts):
        if isinstance(part, Value) and part.name in needed - set(stat.saved):
            needed |= names(part.formula)
    for part in stat.parts:
        if part.name in needed - set(again):
            assert isinstance(part, Value), part
            again[part.name] = evaluate(part.formula, again, "triton")
    assert torch.equal(evaluate(stat.x_hat.formula, again, "triton"), known["x_hat"])


def of(variant: str, placement: str, eps: float = EPS, **fields: Any) -> Statistic:
    given = {"variant": variant, "eps_placement": placement, "eps": eps}
    return statistic(make(hidden_size=COLUMNS, **given, **fields))


@pytest.mark.parametrize("variant", AXES["variant"])
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.125, 1.0])
def test_a_row_of_zeros_has_finite_gradients_in_float32(
    variant: str, eps: float
) -> None:
    stat = of(variant, "outside_sqrt", eps)
    x = torch.zeros(2, COLUMNS)
    rstd = torch.full((2, 1), 1 / eps, dtype=torch.float64).float()
    known = {"x_hat": x, "x": x, "centered": x, "rstd": rstd, "eps": eps, "N": COLUMNS}
    dy = upstream(x).float()
    assert backward(stat, known, dy, "triton").isfinite().all()


@pytest.mark.parametrize("variant", AXES["variant"])
def test_the_limit_for_rows_of_zeros_changes_no_other_row(variant: str) -> None:
    """float32 follows float64 for rows from 1e-10 to 1e3 times eps."""
    stat = of(variant, "outside_sqrt")
    scale = torch.logspace(-10, 3, 14, dtype=torch.float64)[:, None]
    row = torch.randn(1, COLUMNS, generator=torch.Generator().manual_seed(2)) + 0.7
    x = (row.double() * scale * EPS).float()
    dy = upstream(x).float()
    wide = forward(stat, x.double(), "triton")
    exact = backward(stat, wide, dy.double(), "triton")
    found = backward(stat, forward(stat, x, "triton"), dy, "triton")
    bound = 16 * 2.0**-24 * dy.abs().amax() * wide["rstd"]
    assert ((found - exact).abs() <= bound).all()


def parts_of(**fields: Any) -> list[tuple[str, str, bool]]:
    """(name, formula, whether it is rounded) of every value of a statistic."""
    made = statistic(make(hidden_size=COLUMNS, **fields))
    return [(value.name, value.formula, value.rounds) for value in made.values]


def test_in_float32_the_factor_is_one_formula_and_nothing_is_rounded() -> None:
    assert parts_of() == [("rstd", "rsqrt(mean_square + eps)", False)]
    made = parts_of(**{"statistics.root": "sqrt"})
    assert made == [("rms", "sqrt(mean_square + eps)", False)]


def test_in_io_every_value_from_the_reduction_on_is_rounded() -> None:
    assert parts_of(**{"statistics.precision": "io"}) == [
        ("mean_square_io", "mean_square", True),
        ("radicand", "mean_square_io + eps", True),
        ("rstd", "rsqrt(radicand)", True),
    ]
    fields = {"variant": "l2_norm", "eps_placement": "clamp_norm"}
    made = parts_of(**fields, **{"statistics.precision": "io"})
    assert made == [  # torch.linalg.vector_norm rounds its root alone
        ("length", "root(sum_square)", True),
        ("norm", "max(length, eps)", True),
        ("rstd", "1.0 / norm", True),
    ]


def test_stepwise_the_terms_are_rounded_too() -> None:
    fields = {"variant": "layer_norm", "statistics.precision": "io_stepwise"}
    assert parts_of(**fields) == [
        ("mean_io", "mean", True),
        ("centered", "masked(x - mean_io)", True),
        ("square", "centered * centered", True),
        ("variance_io", "variance", True),
        ("radicand", "variance_io + eps", True),
        ("rstd", "rsqrt(radicand)", True),
    ]
    rms = parts_of(**{"statistics.precision": "io_stepwise"})
    assert rms[0] == ("square", "x * x", True)


def test_only_io_takes_its_reductions_of_unrounded_terms() -> None:
    for precision in AXES["statistics.precision"]:
        for variant in AXES["variant"]:
            made = of(variant, "inside_sqrt", **{"statistics.precision": precision})
            assert {mean.wide for mean in made.means} == {precision == "io"}
            assert made.x_hat.rounds == (precision != "float32")


def test_rstd_is_rounded_by_itself_where_the_spec_says() -> None:
    assert parts_of(**{"rounding.rstd": "io"}) == [
        ("inverse", "rsqrt(mean_square + eps)", False),
        ("rstd", "inverse", True),
    ]


@pytest.mark.parametrize("name", NORMS)
def test_no_name_is_made_twice_or_read_before_it_is_made(name: str) -> None:
    stat = statistic(NORMS[name])
    made = {"x", "eps", "N"}
    for part in stat.parts:
        formula = part.term if isinstance(part, Reduction) else part.formula
        read = {n for n in names(formula) if n not in ("masked", "max", "min")}
        read -= {"rsqrt", "sqrt", "root"}
        assert read <= made, part
        assert part.name not in made
        made.add(part.name)
    assert set(stat.saved) <= made


@pytest.mark.parametrize("name", NORMS)
def test_what_is_one_number_a_row_is_known_as_such(name: str) -> None:
    norm = NORMS[name]
    stat = statistic(norm)
    known = forward(stat, rows(norm), "torch")
    flat = {p.name for p in stat.parts if known[p.name].shape[-1] == 1}
    assert stat.per_row == flat


@pytest.mark.parametrize("name", NORMS)
def test_the_notation_of_a_statistic_is_its_value(name: str) -> None:
    """As a paper writes it; functions of a row are those of torch."""
    norm = NORMS[name]
    x = rows(norm)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return values.mean(-1, keepdim=True)

    def var(values: torch.Tensor, unbiased: bool = False) -> torch.Tensor:
        return values.var(-1, keepdim=True, correction=int(unbiased))

    def bound(least: Any, most: Any, clamp: str) -> torch.Tensor:
        value, limit = (
            (least, most) if isinstance(least, torch.Tensor) else (most, least)
        )
        return value.clamp(**{clamp: limit})

    known = {
        "x": x,
        "mean": mean,
        "var": var,
        "unbiased": True,
        "sum": lambda values: values.sum(-1, keepdim=True),
        "sqrt": root,
        "max": lambda a, b: bound(a, b, "min"),
        "min": lambda a, b: bound(a, b, "max"),
    }
    text = statistic(norm).notation.format(x="x", eps=repr(EPS))
    text = text.replace("x[:", "x[:, :").replace("^", "**")
    assert close(eval(text, known), by_hand(norm, x)[0])


def test_a_factor_needs_no_row_means_to_be_differentiated() -> None:
    for norm in FACTORS.values():
        built = graph.build(norm)
        assert built.statistic.adjoint_means == ()
        assert built.norm.step.grads["x"] == substitute(
            statistic(norm).factor_adjoint, {"projection": "dy"}
        )
