"""Formulas are written once, and printed as Triton, as eager torch, and as prose.

A formula is an expression over names with ``+ - * /``, comparisons and the functions of
:data:`FUNCTIONS`.  Division is the rounded one in every language.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from normgen.expr import names, written

_SMALLEST = 2.0**-149  # of float32


@dataclass(frozen=True)
class Function:
    """What a function is called in each language, with ``{0}`` for its argument."""

    triton: str
    torch: str
    prose: str


#: ``root`` is that of a sum of squares, whose gradient at 0 torch would make NaN;
#: ``masked`` is 0 beyond the row's end, which is where only a kernel can look.  The
#: second argument of an activation is a factor of the first that a kernel has made.
FUNCTIONS = {
    "rsqrt": Function("tl.rsqrt({0})", "torch.rsqrt({0})", "1 / sqrt({0})"),
    "sqrt": Function("tl.sqrt_rn({0})", "torch.sqrt({0})", "sqrt({0})"),
    "root": Function(
        "tl.sqrt_rn({0})",
        f"torch.sqrt({{0}}.clamp(min={_SMALLEST:.0e}))",
        "sqrt({0})",
    ),
    "masked": Function("tl.where(mask, {0}, 0.0)", "{0}", "{0}"),
    "max": Function("_at_least({0}, {1})", "{0}.clamp(min={1})", "max({0}, {1})"),
    "min": Function("_at_most({0}, {1})", "{0}.clamp(max={1})", "min({0}, {1})"),
    "where": Function(
        "tl.where({0}, {1}, {2})", "torch.where({0}, {1}, {2})", "where({0}, {1}, {2})"
    ),
    "exp": Function("tl.exp({0})", "torch.exp({0})", "exp({0})"),
    "erf": Function("tl.erf({0})", "torch.erf({0})", "erf({0})"),
    "sigmoid": Function("tl.sigmoid({0})", "torch.sigmoid({0})", "sigmoid({0})"),
    "tanh": Function("_tanh({0})", "torch.tanh({0})", "tanh({0})"),
    "relu": Function("_at_least({0}, 0.0)", "torch.relu({0})", "relu({0})"),
    "given_sigmoid": Function("{1}", "torch.sigmoid({0})", "sigmoid({0})"),
    "given_tanh": Function("{1}", "torch.tanh({0})", "tanh({0})"),
    "silu": Function("{0} * {1}", "torch.nn.functional.silu({0})", "silu({0})"),
    "gelu": Function("{0} * {1}", "torch.nn.functional.gelu({0})", "gelu({0})"),
    "gelu_tanh": Function(
        "{0} * {1}",
        'torch.nn.functional.gelu({0}, approximate="tanh")',
        "gelu_tanh({0})",
    ),
}
_DIVISION = Function("tl.div_rn({0}, {1})", "", "")


@cache
def in_triton(formula: str) -> str:
    """A formula as a kernel computes it, in float32."""
    return _printed(formula, lambda f: f.triton, division=True)


@cache
def in_torch(formula: str) -> str:
    """A formula in eager torch, which promotes and rounds by itself."""
    return _printed(formula, lambda f: f.torch)


@cache
def in_prose(formula: str) -> str:
    """A formula as a docstring tells it."""
    return _printed(formula, lambda f: f.prose)


def _printed(
    formula: str, language: Callable[[Function], str], division: bool = False
) -> str:
    tree = ast.parse(formula, mode="eval")
    return written(_Printer(language, division).visit(tree))


class _Printer(ast.NodeTransformer):
    def __init__(self, language: Callable[[Function], str], division: bool) -> None:
        self.language, self.division = language, division

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name), ast.unparse(node)
        function = FUNCTIONS.get(node.func.id)
        arguments = [self.visit(argument) for argument in node.args]
        if function is None:
            return ast.Call(node.func, arguments, [])
        return _filled(self.language(function), arguments)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        count = names(ast.unparse(node.right)) == {"N"}
        if self.division and isinstance(node.op, ast.Div) and not count:
            return _filled(_DIVISION.triton, [left, right])
        return ast.BinOp(left, node.op, right)


def _filled(text: str, arguments: list[ast.expr]) -> ast.expr:
    names = [f"_{i}" for i in range(len(arguments))]
    tree = ast.parse(text.format(*names), mode="eval").body
    holes: Mapping[str, ast.expr] = dict(zip(names, arguments, strict=True))
    return _Filling(holes).visit(tree)  # type: ignore[no-any-return]


class _Filling(ast.NodeTransformer):
    def __init__(self, holes: Mapping[str, ast.expr]) -> None:
        self.holes = holes

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.holes.get(node.id, node)
