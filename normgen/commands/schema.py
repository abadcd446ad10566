"""``normgen schema``: the JSON Schema (draft-07) of specs, for editors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from normgen.build import FOREIGN
from normgen.config import absolute, relative
from normgen.errors import NormgenError, Problem
from normgen.output import File, read, write_all
from normgen.report import report

TITLE = "normgen spec"
DRAFT = "http://json-schema.org/draft-07/schema#"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="write a file instead")
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite a file that is no schema of normgen's",
    )


def run(args: argparse.Namespace) -> int:
    text = schema_text()
    if args.output is None:
        sys.stdout.write(text)
        return 0
    if not args.output:
        raise NormgenError(Problem("-o", "names no file"))
    path = absolute(Path(args.output))
    name = relative(path, Path.cwd())
    there = read(path, name)
    if there is not None and not args.force and not is_ours(there):
        raise NormgenError(Problem(name, f"not written: foreign: {FOREIGN}"))
    if there != text:
        write_all([File(path, name, text)])
    done = "unchanged" if there == text else "wrote"
    if args.format == "json":
        report("json", files={name: done})
    else:
        print(done, name)
    return 0


def is_ours(text: str) -> bool:
    """Whether a text is a schema that some version of normgen wrote."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(schema, dict) and schema.get("title") == TITLE


def schema_text() -> str:
    """The schema as the file that is checked in."""
    from normgen.spec import SpecFile

    schema = draft_07(SpecFile.model_json_schema())
    schema = {"$schema": DRAFT, **schema, "title": TITLE}
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
