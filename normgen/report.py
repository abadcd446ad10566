"""Problems and findings for people, for programs, and for GitHub's annotations.

``text`` is one line each: problems on standard error, findings on standard output.
``json`` is one document on standard output, ``github`` one workflow command each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from normgen.errors import Problem

if TYPE_CHECKING:
    from normgen.build import Finding

Format = Literal["text", "json", "github"]
FORMATS: tuple[Format, ...] = ("text", "json", "github")


def report(
    style: Format,
    problems: Sequence[Problem] = (),
    findings: Sequence[Finding] = (),
    **facts: Any,
) -> None:
    """Print everything found; ``facts`` are further entries of the JSON document."""
    if style == "json":
        document = {
            "problems": [problem.as_json() for problem in problems],
            "findings": [finding.as_json() for finding in findings],
            **facts,
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    elif style == "github":
        for problem in problems:
            print(_annotation(problem))
        for finding in findings:
            print(_annotation(Problem(finding.path, finding.summary)))
    else:
        for problem in problems:
            print(problem, file=sys.stderr)
        for finding in findings:
            print(finding)


def _annotation(problem: Problem) -> str:
    place = {
        "file": _in_workspace(problem.path),
        "line": problem.line,
        "col": problem.column,
    }
    properties = ",".join(
        f"{name}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in place.items()
        if value is not None
    )
    return f"::error {properties}::{_escaped(problem.message)}"


def _in_workspace(path: str) -> str:
    """A path from the root of GitHub's checkout, whatever folder a step works in."""
    workspace, full = os.environ.get("GITHUB_WORKSPACE"), Path(os.path.abspath(path))
    root = os.path.realpath(workspace) if workspace else None
    if root is None or not full.is_relative_to(root):
        return path
    return full.relative_to(root).as_posix()


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
