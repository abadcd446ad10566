"""``normgen schema``: the JSON Schema (draft-07) of specs, for editors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from normgen.config import absolute
from normgen.output import File, read, write_all

DRAFT = "http://json-schema.org/draft-07/schema#"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write a file instead"
    )


def run(args: argparse.Namespace) -> int:
    text = schema_text()
    if args.output is None:
        sys.stdout.write(text)
        return 0
    name = args.output.as_posix()
    changed = read(args.output, name) != text
    if changed:
        write_all([File(absolute(args.output), name, text)])
    print("wrote" if changed else "unchanged", name)
    return 0


def schema_text() -> str:
    """The schema as the file that is checked in."""
    from normgen.spec import SpecFile

    schema = draft_07(SpecFile.model_json_schema())
    schema = {"$schema": DRAFT, **schema, "title": "normgen spec"}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def draft_07(schema: Any) -> Any:
    """pydantic's schema (draft 2020-12) in the words of draft-07.

    Definitions move.  A reference goes into an ``allOf``, because draft-07 ignores what
    stands beside it.  Titles, made of field names, are dropped, and what pydantic's
    versions write in two ways is written in one.
    """
    if isinstance(schema, list):
        return [draft_07(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            reference = {"$ref": value.replace("#/$defs/", "#/definitions/")}
            made |= reference if len(schema) == 1 else {"allOf": [reference]}
        elif key in ("properties", "$defs"):
            name = "definitions" if key == "$defs" else key
            made[name] = {k: draft_07(inner) for k, inner in value.items()}
        elif key == "enum" and "const" in schema:
            continue
        elif key in ("minimum", "maximum") and value == int(value):
            made[key] = int(value)
        elif key in ("default", "const", "enum", "examples", "required"):
            made[key] = value
        elif key != "title":
            made[key] = draft_07(value)
    return made
