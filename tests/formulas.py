"""Formulas as text, evaluated in torch, and ways in which one may be wrong."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from normgen.notation import FUNCTIONS, in_torch, in_triton

#: What kernels call of Triton, on tensors of any dtype.
TL = SimpleNamespace(
    where=torch.where,
    rsqrt=torch.rsqrt,
    sqrt_rn=torch.sqrt,
    div_rn=torch.true_divide,
    maximum=lambda value, least: torch.as_tensor(value).clamp(min=least),
    minimum=lambda value, most: torch.as_tensor(value).clamp(max=most),
    exp=torch.exp,
    erf=torch.erf,
    sigmoid=torch.sigmoid,
)
#: The languages that a formula can be carried out in.
LANGUAGES: dict[str, Callable[[str], str]] = {"torch": in_torch, "triton": in_triton}


def _at_least(value: Any, bound: float) -> torch.Tensor:
    return torch.as_tensor(value).clamp(min=bound)


def _at_most(value: Any, bound: float) -> torch.Tensor:
    return torch.as_tensor(value).clamp(max=bound)


def evaluate(
    formula: str, values: Mapping[str, Any], language: str = "torch"
) -> torch.Tensor:
    """The value of a formula, as one language prints it; a missing name is an error."""
    known = {"torch": torch, "tl": TL, "_tanh": torch.tanh}
    known |= {"_at_least": _at_least, "_at_most": _at_most}
    return eval(LANGUAGES[language](formula), known, dict(values))


def mutants(formula: str, names: Iterable[str]) -> Iterator[str]:
    """``formula`` with one name swapped, one term dropped, or one sign turned."""
    tree = ast.parse(formula, mode="eval")
    for i, node in enumerate(ast.walk(tree)):
        for other in _changes(node, names):
            changed = copy.deepcopy(tree)
            target = list(ast.walk(changed))[i]
            yield ast.unparse(_Replacement(target, other).visit(changed))


class _Replacement(ast.NodeTransformer):
    def __init__(self, target: ast.AST, other: ast.expr) -> None:
        self.target, self.other = target, other

    def visit(self, node: ast.AST) -> ast.AST:
        return self.other if node is self.target else super().visit(node)


def _changes(node: ast.AST, names: Iterable[str]) -> Iterator[ast.expr]:
    if isinstance(node, ast.Name) and node.id not in FUNCTIONS:
        yield from (ast.Name(name) for name in names if name != node.id)
    if isinstance(node, ast.Call):
        yield from node.args
    if isinstance(node, ast.Compare):
        yield ast.Compare(node.comparators[0], node.ops, [node.left])
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        turned = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}
        operator = turned.get(type(node.op), ast.Mult)
        yield ast.BinOp(node.left, operator(), node.right)
