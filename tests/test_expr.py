"""Formulas are read and rewritten as syntax, not as text."""

from __future__ import annotations

import itertools
import operator
from functools import reduce

import pytest

from normgen.expr import add, is_name, names, substitute


def test_names_are_those_that_a_formula_reads() -> None:
    assert names("tl.where(mask, x - mean, 0.0)") == {"tl", "mask", "x", "mean"}
    assert names("x_hat * x_hat") == {"x_hat"}
    assert names("1.0") == frozenset()


def test_an_attribute_is_no_name() -> None:
    assert names("x.dtype") == {"x"}
    assert substitute("x.w * w", {"w": "weight"}) == "x.w * weight"


def test_only_whole_names_are_replaced() -> None:
    assert substitute("x + x_hat * xx", {"x": "h"}) == "h + x_hat * xx"


def test_names_are_replaced_at_once_and_not_one_in_the_other() -> None:
    assert substitute("x - y", {"x": "y", "y": "x"}) == "y - x"
    assert substitute("x + y", {"x": "y + y", "y": "z"}) == "y + y + z"


PIECES = ("a + b", "a - b", "a * b", "a / b", "-a", "f(a, b)", "a", "2.0")
HOLES = ("x", "x + y", "x - y", "y - x", "x * y", "y / x", "x / y", "-x", "f(x, y)")
VALUES = {"a": 3.0, "b": 5.0, "y": 7.0, "f": lambda p, q: p * 11.0 - q}


@pytest.mark.parametrize("formula", HOLES)
def test_a_replaced_formula_keeps_its_value(formula: str) -> None:
    for piece in PIECES:
        expected = eval(formula, {**VALUES, "x": eval(piece, dict(VALUES))})
        assert eval(substitute(formula, {"x": piece}), dict(VALUES)) == expected


def test_no_parenthesis_stands_where_none_is_needed() -> None:
    assert substitute("x + y", {"x": "(a * b)"}) == "a * b + y"
    assert substitute("x * y", {"x": "a + b"}) == "(a + b) * y"
    assert substitute("f(x)", {"x": "a + b"}) == "f(a + b)"


def test_a_formula_of_one_term_is_its_own_sum() -> None:
    assert add(["dy * w"]) == "dy * w"
    assert add(["dh", "dy * w"]) == "dh + dy * w"


def test_a_sum_has_the_value_of_its_terms() -> None:
    for terms in itertools.product(PIECES, repeat=3):
        expected = reduce(operator.add, (eval(term, dict(VALUES)) for term in terms))
        assert eval(add(list(terms)), dict(VALUES)) == expected


@pytest.mark.parametrize("formula", ["dy", "x_hat", "_"])
def test_a_name_is_a_name(formula: str) -> None:
    assert is_name(formula)


@pytest.mark.parametrize("formula", ["-dy", "dy * 1", "tl.x", "(dy)", "1.0", ""])
def test_anything_else_is_none(formula: str) -> None:
    assert not is_name(formula)
