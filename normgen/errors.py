"""What normgen says when an input is wrong: problems with a place, no traceback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where.

    ``line`` and ``column`` count from 1; both are None where a file as a whole is
    meant.
    """

    path: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = "".join(f":{n}" for n in (self.line, self.column) if n is not None)
        return f"{self.path}{place}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """The same facts for ``--format json``."""
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "message": self.message,
        }


class NormgenError(Exception):
    """An error for the person at the keyboard: every problem found, in file order."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
