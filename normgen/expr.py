"""Formulas as text: which names they read, and renaming, by way of ``ast``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache


@cache
def names(formula: str) -> frozenset[str]:
    """The names that ``formula`` reads; of ``tl.rsqrt(x)``, ``tl`` and ``x``."""
    tree = ast.parse(formula, mode="eval")
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


class _Substitution(ast.NodeTransformer):
    def __init__(self, formulas: Mapping[str, str]) -> None:
        self.formulas = formulas

    def visit_Name(self, node: ast.Name) -> ast.expr:
        formula = self.formulas.get(node.id)
        return node if formula is None else ast.parse(formula, mode="eval").body


def substitute(formula: str, formulas: Mapping[str, str]) -> str:
    """``formula`` with names replaced by formulas, parenthesised where needed."""
    tree = ast.parse(formula, mode="eval")
    return written(_Substitution(formulas).visit(tree))


def written(tree: ast.AST) -> str:
    """A formula as ``ruff format`` writes it: its quotes, and powers of names."""
    text = ast.unparse(tree).replace("'", '"')
    return re.sub(r"(?<![\w.\]])(\w+) \*\* ", r"\1**", text)


def add(terms: list[str]) -> str:
    """The sum of several formulas."""
    return substitute(" + ".join(f"({term})" for term in terms), {})


def is_primary(formula: str) -> bool:
    """Whether a method can be called on a formula as it stands."""
    tree = ast.parse(formula, mode="eval").body
    return isinstance(tree, (ast.Name, ast.Call, ast.Attribute))


def is_name(formula: str) -> bool:
    """Whether a formula is no more than one name."""
    return formula.isidentifier()
