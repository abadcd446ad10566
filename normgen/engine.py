"""Jinja, set up so that templates read as Python and a missing fact is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.ext import Extension

_HERE = Path(__file__).resolve().parent
#: in an installed wheel, and in a source tree
TEMPLATES = next(
    folder
    for folder in (_HERE / "templates", _HERE.parent / "templates")
    if folder.is_dir()
)


class LineStatements(Extension):
    """``#: statement`` on a line of its own is a block tag.

    Jinja's own line statements swallow every blank line after them.
    """

    def preprocess(
        self, source: str, name: str | None, filename: str | None = None
    ) -> str:
        """Turns lines that begin with ``#:`` into block tags."""
        return re.sub(r"^[ \t]*#: ?(.*)$", r"{% \1 %}", source, flags=re.MULTILINE)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        extensions=[LineStatements],
    )


@dataclass
class Renderer:
    """Renders templates, and keeps the source of each that it used."""

    used: dict[str, str] = field(default_factory=dict)

    def render(self, template: str, **facts: Any) -> str:
        """One template, rendered."""
        return self._get(template).render(**facts)

    def macro(self, template: str, name: str, *arguments: Any) -> str:
        """One macro of a template, called."""
        return str(getattr(self._get(template).module, name)(*arguments))

    def _get(self, template: str) -> Template:
        if template not in self.used:
            self.used[template] = source(template)
        return _environment().get_template(template)


@cache
def source(template: str) -> str:
    """The text of a template."""
    return (TEMPLATES / template).read_text(encoding="utf-8")


def tidy(text: str) -> str:
    """Empty paragraphs leave runs of blank lines: one in a body, two between."""
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{3,}(?=[ \t])", "\n\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"
