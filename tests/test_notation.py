"""A formula is printed as Triton, as eager torch and as prose, and means the same."""

from __future__ import annotations

import ast

import pytest
import torch
from formulas import LANGUAGES, evaluate
from renderings import every_norm

from normgen import graph
from normgen.adjoint import differentiate
from normgen.notation import FUNCTIONS, in_prose, in_torch, in_triton

#: a call of each function -> Triton, torch, prose
PRINTED = {
    "rsqrt(s + eps)": (
        "tl.rsqrt(s + eps)",
        "torch.rsqrt(s + eps)",
        "1 / sqrt(s + eps)",
    ),
    "sqrt(s)": ("tl.sqrt_rn(s)", "torch.sqrt(s)", "sqrt(s)"),
    "root(s)": ("tl.sqrt_rn(s)", "torch.sqrt(s.clamp(min=1e-45))", "sqrt(s)"),
    "masked(x - mean)": ("tl.where(mask, x - mean, 0.0)", "x - mean", "x - mean"),
    "max(s, eps)": ("_at_least(s, eps)", "s.clamp(min=eps)", "max(s, eps)"),
    "min(s, 1.0)": ("_at_most(s, 1.0)", "s.clamp(max=1.0)", "min(s, 1.0)"),
    "where(x > 0.0, 1.0, x)": (
        "tl.where(x > 0.0, 1.0, x)",
        "torch.where(x > 0.0, 1.0, x)",
        "where(x > 0.0, 1.0, x)",
    ),
    "exp(x)": ("tl.exp(x)", "torch.exp(x)", "exp(x)"),
    "erf(x)": ("tl.erf(x)", "torch.erf(x)", "erf(x)"),
    "sigmoid(x)": ("tl.sigmoid(x)", "torch.sigmoid(x)", "sigmoid(x)"),
    "tanh(x)": ("_tanh(x)", "torch.tanh(x)", "tanh(x)"),
    "relu(x)": ("_at_least(x, 0.0)", "torch.relu(x)", "relu(x)"),
    "given_sigmoid(x, sigma)": ("sigma", "torch.sigmoid(x)", "sigmoid(x)"),
    "given_tanh(x, below)": ("below", "torch.tanh(x)", "tanh(x)"),
    "silu(x, sigma)": ("x * sigma", "torch.nn.functional.silu(x)", "silu(x)"),
    "gelu(x, below)": ("x * below", "torch.nn.functional.gelu(x)", "gelu(x)"),
    "gelu_tanh(x, below)": (
        "x * below",
        'torch.nn.functional.gelu(x, approximate="tanh")',
        "gelu_tanh(x)",
    ),
}


@pytest.mark.parametrize("formula", PRINTED)
def test_a_function_is_printed_in_every_language(formula: str) -> None:
    printed = in_triton(formula), in_torch(formula), in_prose(formula)
    assert printed == PRINTED[formula]


def test_every_function_is_here() -> None:
    assert {formula.split("(")[0] for formula in PRINTED} == set(FUNCTIONS)


@pytest.mark.parametrize("formula", [f for f in PRINTED if "below" not in f])
def test_the_languages_have_one_value(formula: str) -> None:
    s = torch.linspace(0.1, 3.0, 12, dtype=torch.float64)
    known = {"x": s - 1.5, "s": s, "eps": 0.4, "mean": 0.3}
    known |= {"mask": torch.tensor(True), "sigma": torch.sigmoid(known["x"])}
    values = [evaluate(formula, known, language) for language in LANGUAGES]
    assert torch.allclose(values[0], values[1], rtol=1e-14)


@pytest.mark.parametrize(
    "formula, triton",
    [
        ("a / b", "tl.div_rn(a, b)"),
        ("(a + b) / (c * d)", "tl.div_rn(a + b, c * d)"),
        ("a / b / c", "tl.div_rn(tl.div_rn(a, b), c)"),
        ("1.0 / (sqrt(s) + eps)", "tl.div_rn(1.0, tl.sqrt_rn(s) + eps)"),
    ],
)
def test_a_kernel_rounds_its_divisions_as_torch_does(formula, triton) -> None:
    """Triton's own division is an approximation."""
    assert in_triton(formula) == triton
    assert "div_rn" not in in_torch(formula) + in_prose(formula)
    assert in_prose("a / b") == in_torch("a / b") == "a / b"


def test_a_count_of_columns_divides_as_sums_do_everywhere() -> None:
    assert in_triton("a / N") == "a / N"
    assert in_triton("a / (N)") == "a / N"


@pytest.mark.parametrize("language", [in_triton, in_torch, in_prose])
def test_an_argument_keeps_its_value_whatever_it_is_put_into(language) -> None:
    """Parentheses stand where a method or an operator would take a part of it."""
    for inner in ("a + b", "a - b", "-a", "a * b", "a"):
        for outer in ("max({}, 1.0)", "silu({}, s)", "rsqrt({})", "2.0 - {}", "{} / c"):
            argument = f"({inner})" if outer[0] in "2{" else inner
            text = language(outer.format(argument))
            whole = {ast.unparse(node) for node in ast.walk(ast.parse(text))}
            assert inner in whole, text


def test_functions_stand_in_each_other() -> None:
    formula = "rsqrt(max(sqrt(s), eps))"
    assert in_triton(formula) == "tl.rsqrt(_at_least(tl.sqrt_rn(s), eps))"
    assert in_torch(formula) == "torch.rsqrt(torch.sqrt(s).clamp(min=eps))"
    assert in_prose(formula) == "1 / sqrt(max(sqrt(s), eps))"
    assert in_prose("x * rsqrt(s)") == "x * (1 / sqrt(s))"


def test_a_function_that_no_language_knows_stays_as_it_is() -> None:
    for language in (in_triton, in_torch, in_prose):
        assert language("norm(sqrt_of(x))") == "norm(sqrt_of(x))"


def test_texts_have_the_quotes_of_the_formatter() -> None:
    assert "'" not in in_torch("gelu_tanh(x, below)")


def test_the_gradient_of_a_root_is_finite_where_a_row_is_zero() -> None:
    s = torch.zeros(2, requires_grad=True)
    evaluate("root(s)", {"s": s}).sum().backward()
    assert s.grad is not None
    assert s.grad.isfinite().all()
    plain = torch.zeros(2, requires_grad=True)
    evaluate("sqrt(s)", {"s": plain}).sum().backward()
    assert plain.grad is not None
    assert not plain.grad.isfinite().any()


def test_a_formula_of_a_norm_uses_no_other_function() -> None:
    for norm in every_norm().values():
        built = graph.build(norm)
        for line in (*built.lines, *differentiate(built).lines):
            for node in ast.walk(ast.parse(line.formula)):
                if isinstance(node, ast.Call):
                    assert ast.unparse(node.func) in FUNCTIONS, line
