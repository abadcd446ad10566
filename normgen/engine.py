"""Jinja, set up so that templates read as Python and a missing fact is an error."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from jinja2.exceptions import TemplateNotFound
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


class _Recording(BaseLoader):
    """Reads templates, and remembers which."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str, None]:
        path = TEMPLATES / template
        if not path.is_file():
            raise TemplateNotFound(template)
        source = path.read_text(encoding="utf-8")
        self.sources[template] = source
        return source, str(path), None


@lru_cache(maxsize=1)
def _environment() -> tuple[Environment, _Recording]:
    loader = _Recording()
    environment = Environment(
        loader=loader,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        extensions=[LineStatements],
    )
    return environment, loader


def render(template: str, **facts: Any) -> str:
    """One template, rendered."""
    return _environment()[0].get_template(template).render(**facts)


def macro(template: str, name: str, *arguments: Any) -> str:
    """One macro of a template, called."""
    module = _environment()[0].get_template(template).module
    return str(getattr(module, name)(*arguments))


def source(template: str) -> str:
    """The text of a template that was rendered before."""
    return _environment()[1].sources[template]


def tidy(text: str) -> str:
    """Empty paragraphs leave runs of blank lines: one in a body, two between."""
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{3,}(?=[ \t])", "\n\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"
