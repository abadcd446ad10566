"""Every fault that pydantic can find in a spec has a sentence of ours."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from normgen import fields, rules, spec
from normgen.messages import SENTENCES
from normgen.spec import SpecFile
from normgen.yaml_reader import read

BAD_SPECS = Path(__file__).parent / "golden" / "bad_specs"
SAID = "\n".join(p.read_text(encoding="utf-8") for p in BAD_SPECS.glob("*.txt"))


def models(annotation: object = SpecFile) -> Iterator[type[BaseModel]]:
    if get_args(annotation):
        for inner in get_args(annotation):
            yield from models(inner)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)


def test_every_model_is_strict_frozen_and_forbids_unknown_fields() -> None:
    found = set(models())
    assert len(found) >= 4
    for model in found:
        assert model.model_config.get("extra") == "forbid", model
        assert model.model_config.get("strict"), model
        assert model.model_config.get("frozen"), model
        assert model.model_config.get("allow_inf_nan") is False, model


def test_every_field_is_described() -> None:
    for model in set(models()):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_no_kind_of_fault_falls_back_on_pydantics_wording() -> None:
    kinds: set[str] = set()
    for path in BAD_SPECS.glob("*.yaml"):
        try:
            data = read(path.read_text(encoding="utf-8"), path.name).data
            SpecFile.model_validate(data)
        except ValidationError as error:
            kinds |= {detail["type"] for detail in error.errors()}
        except Exception:  # not YAML: another test's matter
            continue
    assert kinds - {"conflicts"} <= set(SENTENCES)


def test_no_sentence_is_without_a_golden_spec() -> None:
    for kind, sentence in SENTENCES.items():
        fixed = max(sentence.replace("{", "}").split("}")[::2], key=len)
        assert fixed in SAID, kind


def texts_of(module: object, function: str) -> Iterator[str]:
    """The longest fixed piece of every text that rules yield, or checks raise."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if function == "yield" and isinstance(node, ast.Yield):
            assert isinstance(node.value, ast.Tuple)
            message = node.value.elts[1]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            message = node.args[0]
        else:
            continue
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        fixed = [p.value for p in parts if isinstance(p, ast.Constant)]
        yield max(fixed, key=len, default="")


@pytest.mark.parametrize("text", sorted(set(texts_of(rules, "yield"))))
def test_no_rule_is_without_a_golden_spec(text: str) -> None:
    assert text
    assert text in SAID


@pytest.mark.parametrize(
    "text", sorted({*texts_of(fields, "error"), *texts_of(spec, "expect")})
)
def test_no_check_of_a_value_is_without_a_golden_spec(text: str) -> None:
    assert text
    assert text in SAID


@pytest.mark.parametrize("path", sorted(BAD_SPECS.glob("*.txt")), ids=lambda p: p.stem)
def test_messages_speak_yaml_and_not_python(path: Path) -> None:
    said = path.read_text(encoding="utf-8")
    for word in ("None", "True", "False", "Input should", "tuple", "dict", "Traceback"):
        assert word not in said
