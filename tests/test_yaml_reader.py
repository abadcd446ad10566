"""The YAML of specs is 1.2 core, and every value has a place."""

from __future__ import annotations

from typing import Any

import pytest

from normgen.errors import NormgenError
from normgen.yaml_reader import dotted, read, shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5e+3", -1500.0),
        ("12", 12),
        ("-3", -3),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        # Strings, where YAML 1.1 has booleans, numbers, times and dates.
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("12:30:45", "12:30:45"),
        ("2001-01-01", "2001-01-01"),
        ("1e", "1e"),
        ("=", "="),
        ("'1'", "1"),
        ('"true"', "true"),
        ("|-\n  12", "12"),
        ("\u0661", "\u0661"),  # a digit, but no ASCII one
    ],
)
def test_a_plain_scalar_is_what_the_core_schema_says(text: str, value: Any) -> None:
    document = read(f"a: {text}\n", "f")
    assert document.problems == []
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


def test_places_count_from_one_for_keys_and_values() -> None:
    document = read("a: 1\nb:\n  - c:  2\n  -\n", "f")
    assert document.keys == {("a",): (1, 1), ("b",): (2, 1), ("b", 0, "c"): (3, 5)}
    assert document.values[("a",)] == (1, 4)
    assert document.values[("b",)] == (3, 3)
    assert document.values[("b", 0, "c")] == (3, 9)
    assert document.place(("b", 0, "gone", "deeper")) == (3, 5)


def test_a_column_counts_characters_whatever_their_width() -> None:
    document = read("\U0001f389é: 1\n", "f")
    assert document.values[("\U0001f389é",)] == (1, 5)


def test_the_place_of_nothing_is_its_key() -> None:
    assert read("a:\n\n\nb: 1\n", "f").values[("a",)] == (1, 1)


def test_the_first_of_two_equal_keys_counts_and_both_lines_are_named() -> None:
    document = read("a: {b: 1}\nc: 2\na: {d: 3}\n", "f")
    assert document.data == {"a": {"b": 1}, "c": 2}
    assert [str(p) for p in document.problems] == [
        "f:3:1: a: given twice, on lines 1 and 3"
    ]


def test_a_refused_value_is_remembered_so_that_it_is_told_once() -> None:
    document = read("a: *x\nb: !t 1\nc: .inf\n", "f")
    assert document.unusable == {("a",), ("b",), ("c",)}
    assert len(document.problems) == 3


def test_an_alias_as_key_leaves_the_rest_readable() -> None:
    document = read("*x : 1\n[a, {b: c}]: {d: [e]}\nf: 2\n", "f")
    assert document.data == {"f": 2}
    assert len(document.problems) == 2


@pytest.mark.parametrize("digits", ["9" * 5000, "0x" + "f" * 5000, "-" + "1" * 41])
def test_a_number_too_long_to_print_is_refused(digits: str) -> None:
    document = read(f"a: {digits}\n? {digits}\n: 1\n", "f")
    assert [p.message for p in document.problems] == [
        "a: a number has at most 40 characters"
    ]


def test_a_route_reads_as_in_python() -> None:
    assert dotted(("kernels", 0, "affine", "bias")) == "kernels[0].affine.bias"
    assert dotted(("a", "two words")) == 'a."two words"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        (1e-05, "1e-05"),
        ("no", '"no"'),
        ("two\nlines", r'"two\nlines"'),
        ("é", '"é"'),
        ([1, "a"], '[1, "a"]'),
        ([[1]], "a list"),
        ({"a": 1}, "a mapping"),
    ],
)
def test_a_value_is_shown_as_yaml_in_one_line(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 1000)) < 70


@pytest.mark.parametrize(
    "text",
    [
        "%YAML 1.3\n---\nversion: 1\n",
        "%YAML 1." + "9" * 5000 + "\n---\nversion: 1\n",
        'version: 1\nname: "\\UFFFFFFFF"\n',
        'version: "\\U00110000"\n',
        "a: 1\na: " + "[" * 5000,
        "? " + "[" * 3000,
    ],
    ids=range(6),
)
def test_what_the_parser_cannot_read_is_a_problem_and_no_traceback(text: str) -> None:
    try:
        document = read(text, "spec.yaml")
    except NormgenError as error:
        assert error.problems
    else:
        assert document.problems
