"""A spec file from disk: text to a checked, frozen SpecFile, or every problem in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from normgen.errors import NormgenError, Problem

if TYPE_CHECKING:
    from normgen.spec import SpecFile

#: JSON is YAML too; a name without a suffix may be a pipe.
YAML_SUFFIXES = (".yaml", ".yml", ".json", "")


def load(path: Path, display: str | None = None) -> SpecFile:
    """The spec in the file at ``path``.

    ``display`` is the name that problems give the file (default: the path).  Raises
    NormgenError with all problems found, in file order.
    """
    display = path.as_posix() if display is None else display
    text = read_text(path, display)
    if path.suffix == ".py":
        raise NormgenError(Problem(display, _python_message(text)))
    try:
        return parse(text, display)
    except NormgenError:
        if path.suffix in YAML_SUFFIXES or "kernels:" in text:
            raise
    raise NormgenError(Problem(display, "is no spec; a spec is a .yaml file"))


def _python_message(text: str) -> str:
    from normgen.header import parse

    made = parse(text)
    spec = f"; it was made from {made.spec}" if made else ""
    return f"is a Python file, expected a spec (YAML){spec}"


def parse(text: str, display: str) -> SpecFile:
    """The spec in ``text``; raises NormgenError as :func:`load` does."""
    from pydantic import ValidationError

    from normgen.messages import problems
    from normgen.spec import SpecFile
    from normgen.yaml_reader import read

    try:
        document = read(text, display)
    except NormgenError as error:
        raise NormgenError(*map(_plain, error.problems)) from None
    found = document.problems
    try:
        spec = SpecFile.model_validate(document.data)
    except ValidationError as error:
        found = [*found, *problems(error, document, display)]
    if found:
        raise NormgenError(*sorted(found, key=_place))
    return spec


def read_text(path: Path, display: str) -> str:
    """The UTF-8 text of a file, without a byte order mark."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NormgenError(Problem(display, "no such file")) from None
    except IsADirectoryError:
        raise NormgenError(
            Problem(display, "is a directory, expected a file")
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NormgenError(Problem(display, f"cannot be read: {reason}")) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].removeprefix(b"\xef\xbb\xbf")
        line_start = before.rfind(b"\n") + 1
        column = len(before[line_start:].decode("utf-8", errors="replace")) + 1
        byte = f"0x{data[error.start]:02x}"
        raise NormgenError(
            Problem(
                display,
                f"not UTF-8: byte {byte} cannot be decoded",
                before.count(b"\n") + 1,
                column,
            )
        ) from None


def _plain(problem: Problem) -> Problem:
    """The parser's words for "the document should have ended", as a person's."""
    pattern = r"expected '<document start>', but found .*"
    message = re.sub(
        pattern, "expected one mapping, and nothing after it", problem.message
    )
    return replace(problem, message=message)


def _place(problem: Problem) -> tuple[int, int]:
    return problem.line or 0, problem.column or 0
