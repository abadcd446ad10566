"""The JSON Schema is draft-07, fresh, and of the same mind as the models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from jsonschema import Draft7Validator
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from normgen.commands.schema import DRAFT, draft_07, schema_text
from normgen.fields import (
    DTYPES,
    LARGEST_CHANNEL_ROW,
    LARGEST_REGISTER_ROW,
    MAX_HIDDEN_SIZE,
    MAX_NAME_LENGTH,
    Affine,
    BranchScale,
    Gate,
    Modulation,
    Rounding,
    Statistics,
)
from normgen.spec import Norm, SpecFile
from normgen.yaml_reader import read

REPOSITORY = Path(__file__).parent.parent
BAD_SPECS = REPOSITORY / "tests" / "golden" / "bad_specs"
CHECKED_IN = REPOSITORY / "specs" / "normgen.schema.json"
GOOD = sorted((REPOSITORY / "specs").glob("*.yaml"))
SCHEMA = json.loads(schema_text())


def faults(text: str) -> list[str]:
    data = read(text, "spec.yaml").data
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(data)]


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from keywords(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            if key in ("properties", "definitions"):
                for inner in value.values():
                    yield from keywords(inner)
            elif key not in ("default", "const", "enum", "required"):
                yield from keywords(value)


def test_the_checked_in_schema_is_fresh() -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == schema_text(), (
        "run: normgen schema -o specs/normgen.schema.json"
    )


def test_the_schema_is_valid_draft_07() -> None:
    assert SCHEMA["$schema"] == DRAFT
    Draft7Validator.check_schema(SCHEMA)


def test_every_keyword_is_one_that_draft_07_knows() -> None:
    known = set(Draft7Validator.META_SCHEMA["properties"])
    assert set(keywords(SCHEMA)) <= known


def test_nothing_stands_beside_a_reference() -> None:
    def check(schema: Any) -> None:
        if isinstance(schema, dict):
            assert "$ref" not in schema or len(schema) == 1, schema
            for value in schema.values():
                check(value)
        elif isinstance(schema, list):
            for item in schema:
                check(item)

    check(SCHEMA)


def test_editors_see_every_description_and_default() -> None:
    fields = SCHEMA["definitions"]["Norm"]["properties"]
    for name, info in Norm.model_fields.items():
        assert "description" in fields[name] or "allOf" in fields[name], name
        assert info.is_required() or "default" in fields[name], name


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_spec_of_ours_passes_and_names_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert faults(text) == []
    assert text.startswith("# yaml-language-server: $schema=normgen.schema.json\n")


@pytest.mark.parametrize(
    "name",
    [
        "shape_list_at_top",
        "shape_no_version",
        "shape_no_kernels",
        "shape_kernels_no_entries",
        "shape_kernels_mapping",
        "shape_kernel_is_name",
        "shape_affine_not_mapping",
        "version_string",
        "field_typo",
        "field_one_level_off",
        "field_missing",
        "eps_string",
        "eps_true",
        "boolean_words",
        "number_as_string",
        "number_range",
        "dtype_scalar",
        "dtype_unknown",
        "dtype_empty",
        "choice_wrong",
        "choice_nothing",
        "name_no_string",
        "values",
    ],
)
def test_a_bad_spec_fails_in_the_editor_too(name: str) -> None:
    path = REPOSITORY / "tests" / "golden" / "bad_specs" / f"{name}.yaml"
    assert faults(path.read_text(encoding="utf-8"))


def test_a_field_named_like_a_keyword_is_kept() -> None:
    schema = {"properties": {"title": {"title": "Title", "type": "string"}}}
    assert draft_07(schema) == {"properties": {"title": {"type": "string"}}}
    assert draft_07({"default": {"title": 1}}) == {"default": {"title": 1}}


def test_the_schema_names_the_fields_of_the_models() -> None:
    assert set(SCHEMA["properties"]) == set(SpecFile.model_fields)
    assert set(SCHEMA["definitions"]["Norm"]["properties"]) == set(Norm.model_fields)


PAGE = (REPOSITORY / "docs" / "spec.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| (.+) \|$", PAGE.split("### Rules")[0], re.M
)
LIMITS: dict[str, Iterable[float]] = {
    "eps": (1,),
    "name": (MAX_NAME_LENGTH,),
    "hidden_size": (1, MAX_HIDDEN_SIZE),
    "affine.weight_offset": (-1024, 1024),
    "strategy": LARGEST_REGISTER_ROW.values(),
}
INNER: dict[str, type[BaseModel]] = {
    "affine": Affine,
    "rounding": Rounding,
    "statistics": Statistics,
    "gate": Gate,
    "modulation": Modulation,
    "branch_scale": BranchScale,
}
#: Fields of a block that the row of the block tells.
IN_BLOCK = {"branch_scale": ("constant", "per")}


def fields() -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a norm by its dotted name, those of mappings one by one."""
    for name, field in Norm.model_fields.items():
        told = IN_BLOCK.get(name, ())
        if name not in INNER or told:
            yield name, field
        for key, info in INNER[name].model_fields.items() if name in INNER else ():
            if key not in told:
                yield f"{name}.{key}", info


FIELDS = dict(fields())


def plain(markdown: str) -> str:
    """A text of the page as descriptions write it."""
    markdown = re.sub(r" \(\[.+?\]\(\S+\.md\)\)", "", markdown)  # a link
    markdown = re.sub("√max(\\(.+?\\))", r"sqrt(max\1)", markdown)
    signs = {"√(": "sqrt(", "√s": "sqrt(s)", " · ": " * ", "\N{MINUS SIGN}": "-"}
    for sign, words in signs.items():
        markdown = markdown.replace(sign, words)
    return markdown.replace("`", "")


def words_of(annotation: Any) -> Iterator[Any]:
    """The strings and truth values that an annotation lists."""
    if annotation is bool:
        yield from ("true", "false")
    for inner in get_args(annotation):
        if isinstance(inner, str) and get_origin(annotation) is Literal:
            yield inner
        elif get_args(inner):
            yield from words_of(inner)


def test_the_page_has_every_field_once() -> None:
    assert sorted(row[0] for row in ROWS) == sorted(FIELDS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_page_describes_a_field_as_the_schema_does(row: tuple[str, ...]) -> None:
    name, said, _, meaning = row
    if name == "eps":  # whose default is told in the column of defaults
        meaning = f"{meaning} {said.capitalize()}."
    assert plain(meaning) == FIELDS[name].description


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_page_has_the_defaults(row: tuple[str, ...]) -> None:
    name, said, _, _ = row
    field = FIELDS[name]
    if field.is_required():
        assert said == "required"
    elif name == "eps":
        assert said.startswith("required, but with ")
    elif field.default in (None, ()):
        assert said == "none"
    elif name == "dtype":
        assert (said, field.default) == ("all three", DTYPES)
    else:
        assert (
            said == f"`{json.dumps(field.default).strip(chr(34)).removesuffix('.0')}`"
        )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_page_has_the_values(row: tuple[str, ...]) -> None:
    name, _, said, _ = row
    words = [*words_of(FIELDS[name].annotation)]
    if name in IN_BLOCK:  # which has its own values in the block
        words = []
        per = words_of(INNER[name].model_fields["per"].annotation)
        assert f"{{per: {' or '.join(', '.join(per).rsplit(', ', 1))}}}" in said
    if set(DTYPES) < set(words):
        words = [word for word in words if word not in DTYPES]
        assert said.endswith(", a dtype")
    if words:
        assert sorted(re.findall(r"`(\w+)`", said)) == sorted(words)
    for number in LIMITS.get(name, ()):
        written = said.replace("\N{MINUS SIGN}", "-")
        assert re.search(rf"(?<![\w-]){number}\b", written), number


def test_the_page_tells_how_long_a_row_of_channels_may_be() -> None:
    (meaning,) = (row[3] for row in ROWS if row[0] == "axis")
    assert f"{LARGEST_CHANNEL_ROW} channels" in meaning


@pytest.mark.parametrize("path", sorted(BAD_SPECS.glob("values*.yaml")))
def test_each_wrong_value_is_wrong_in_the_editor_too(path: Path) -> None:
    """All but what only a second field makes wrong, and lists that repeat an entry."""
    data = read(path.read_text(encoding="utf-8"), "spec.yaml").data
    for entry in data["kernels"]:
        one = {"version": 1, "kernels": [entry]}
        told = str(entry.get("replaces", ""))
        if "." in told and isinstance(entry["replaces"], list):
            continue  # a class path is a text to an editor
        if not [*Draft7Validator(SCHEMA).iter_errors(one)]:
            assert "replaces" in entry, entry
