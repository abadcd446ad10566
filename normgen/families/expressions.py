"""The small expressions of the table: sizes and conditions in terms of config keys."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any

Lookup = Callable[[str], Any]

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda value, values: value in values,
}


def evaluate(text: str, lookup: Lookup) -> Any:
    """The value of an expression; ``lookup`` gives the value of a (dotted) key.

    Takes numbers, strings, keys, ``+ - * // **``, ``== != in``, ``not and or``,
    ``len`` and an index in brackets.
    Raises ValueError for anything else.
    """
    try:
        return _value(ast.parse(text, mode="eval").body, lookup)
    except SyntaxError:
        raise ValueError(f'"{text}" is no expression') from None


def _value(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name() | ast.Attribute():
            return lookup(ast.unparse(node))
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, lookup), _value(right, lookup))
        case ast.Compare(left, [op], [right]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_value(left, lookup), _value(right, lookup))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, lookup)
        case ast.BoolOp(op, values):
            every = all if isinstance(op, ast.And) else any
            return every(_value(value, lookup) for value in values)
        case ast.Subscript(values, index):
            return _value(values, lookup)[_value(index, lookup)]
        case ast.Call(func=ast.Name(id="len"), args=[values], keywords=[]):
            return len(_value(values, lookup))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, lookup)
    raise ValueError(f'"{ast.unparse(node)}" is no expression of config keys')


def keys(text: str) -> list[str]:
    """The config keys that an expression reads, in order, each once."""
    return list(dict.fromkeys(_keys(ast.parse(text, mode="eval").body)))


def _keys(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
        return
    for child in (
        node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    ):
        yield from _keys(child)
