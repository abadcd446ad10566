"""Formulas as text, evaluated in torch, and ways in which one may be wrong."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

#: What the formulas call of Triton, on tensors of any dtype.
TL = SimpleNamespace(
    where=torch.where,
    rsqrt=torch.rsqrt,
    sqrt_rn=torch.sqrt,
    maximum=lambda value, least: torch.as_tensor(value).clamp(min=least),
)


def evaluate(formula: str, values: Mapping[str, Any]) -> torch.Tensor:
    """The value of a formula; a name that is missing is an error."""
    return eval(formula, {"tl": TL, "torch": torch}, dict(values))


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
    if isinstance(node, ast.Name) and node.id != "tl":
        yield from (ast.Name(name) for name in names if name != node.id)
    if isinstance(node, ast.Call):
        yield from node.args
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        turned = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}
        operator = turned.get(type(node.op), ast.Mult)
        yield ast.BinOp(node.left, operator(), node.right)
