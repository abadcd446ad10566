"""YAML 1.2 text to plain data, with the place of every key and value.

The parser's events are read straight: no YAML 1.1 guess stands between the text and the
data, and whatever the spec language has no use for (anchors, tags, merge keys, a second
document) is refused where it stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from normgen.errors import NormgenError, Problem

Route = tuple[str | int, ...]  # the way to a value: ("kernels", 0, "eps")
Place = tuple[int, int]  # line and column, both from 1

MAX_DEPTH = 16
MAX_NUMBER = 40  # characters; Python refuses to print integers of thousands

# The plain scalars of the YAML 1.2 core schema (section 10.3.2); all else is a string.
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NUMBER = re.compile(f"{_BASED.pattern}|{_FLOAT.pattern}")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass
class Document:
    """What one YAML text says.

    ``keys`` and ``values`` give places by route.  ``unusable`` holds the routes whose
    value was refused: a problem is already told, and the value is None.
    """

    data: Any = None
    keys: dict[Route, Place] = field(default_factory=dict)
    values: dict[Route, Place] = field(default_factory=dict)
    unusable: set[Route] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def place(self, route: Route) -> Place:
        """Where the value at ``route`` stands, or else the nearest that holds it."""
        while route and route not in self.values:
            route = route[:-1]
        return self.values.get(route, (1, 1))


def read(text: str, display: str) -> Document:
    """The document in ``text``; ``display`` names the file in problems.

    Raises NormgenError where the text is no YAML at all, is empty, or holds several
    documents; what can be told beside other problems is in ``Document.problems``.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        return _Reader(display, YAML(typ="safe", pure=True).parse(text)).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = Problem(display, _syntax_message(error), line, column)
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        character = f"U+{error.character:04X}"
        problem = Problem(
            display, f"the character {character} is not allowed in YAML", line, column
        )
    except NormgenError:
        raise
    except Exception:  # the parser's own, of an escape or a directive beyond its means
        problem = Problem(display, "not valid YAML: the parser cannot read it", 1, 1)
    raise NormgenError(problem)


def _syntax_message(error: Any) -> str:
    what = " ".join(str(error.problem or error.context).split())
    if "'\\t'" in what:
        return "a tab cannot indent YAML; use spaces"
    if error.problem and error.context and error.context_mark:
        context = " ".join(str(error.context).split())
        what += f" ({context} that begins on line {error.context_mark.line + 1})"
    return f"not valid YAML: {what}"


class _Reader:
    """Reads one stream of events, front to back."""

    def __init__(self, display: str, events: Iterator[Any]) -> None:
        self._display = display
        self._events = events
        self._document = Document()

    def document(self) -> Document:
        next(self._events)  # the stream starts
        start = next(self._events)
        if not hasattr(start, "version"):
            raise NormgenError(
                Problem(self._display, 'the file is empty; begin with "version: 1"')
            )
        if start.version is not None and tuple(start.version) != (1, 2):
            self._tell(_place(start), "specs are YAML 1.2; remove the %YAML directive")
        self._document.data = self._value(next(self._events), ())
        next(self._events)  # the document ends
        after = next(self._events)
        if hasattr(after, "version"):
            self._tell(_place(after), "a second document begins; a file holds one spec")
        return self._document

    def _tell(self, place: Place, message: str) -> None:
        self._document.problems.append(Problem(self._display, message, *place))

    def _refuse(self, route: Route, place: Place, message: str) -> None:
        self._document.unusable.add(route)
        self._tell(place, named(route, message))

    def _value(self, event: Any, route: Route) -> Any:
        place = _place(event)
        if _kind(event) == "Scalar" and event.value == "" and _is_plain(event):
            place = self._document.keys.get(route, place)
        self._document.values[route] = place
        if len(route) > MAX_DEPTH:
            raise NormgenError(Problem(self._display, "nested too deeply", *place))
        if _kind(event) == "Alias":
            self._refuse(route, place, "aliases are not supported; repeat the value")
            return None
        if event.anchor is not None:
            self._tell(
                place,
                named(route, f"anchors are not supported; remove &{event.anchor}"),
            )
        if event.tag is not None:
            self._refuse(route, place, f"tags are not supported; remove {_tag(event)}")
        if _kind(event) == "MappingStart":
            return self._mapping(route)
        if _kind(event) == "SequenceStart":
            return self._sequence(route)
        return self._scalar(event, route) if _is_plain(event) else event.value

    def _sequence(self, route: Route) -> list[Any]:
        entries: list[Any] = []
        while _kind(event := next(self._events)) != "SequenceEnd":
            entries.append(self._value(event, (*route, len(entries))))
        return entries

    def _mapping(self, route: Route) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            key, place = self._key(event, route), _place(event)
            if key is None:
                self._skip(next(self._events))
                continue
            here = (*route, key)
            if key in fields:
                lines = f"{self._document.keys[here][0]} and {place[0]}"
                self._tell(place, f"{dotted(here)}: given twice, on lines {lines}")
                self._skip(next(self._events))
                continue
            self._document.keys[here] = place
            fields[key] = self._value(next(self._events), here)
        return fields

    def _key(self, event: Any, route: Route) -> str | None:
        """The key, or None (and a problem told) where it is no plain field name."""
        place = _place(event)
        if _kind(event) != "Scalar" or event.anchor is not None or event.tag:
            self._tell(place, named(route, "a key must be a field name"))
            self._skip(event)
            return None
        if _is_plain(event) and event.value == "<<":
            message = "merge keys (<<) are not supported; write out the fields"
            self._tell(place, named(route, message))
            return None
        if _is_plain(event) and not isinstance(_resolve(event.value), str):
            name = event.value or "nothing"
            message = f"a key must be a field name, got {name}"
            self._tell(place, named(route, message))
            return None
        return str(event.value)

    def _scalar(self, event: Any, route: Route) -> Any:
        text, value = event.value, _resolve(event.value)
        if _SPECIAL.fullmatch(text):
            fault = f"expected a finite number, got {text}"
        elif isinstance(value, float) and not math.isfinite(value):
            fault = f"the number {text} is out of range"
        elif len(text) > MAX_NUMBER and _NUMBER.fullmatch(text):
            fault = f"a number has at most {MAX_NUMBER} characters"
        else:
            return value
        self._refuse(route, _place(event), fault)
        return None

    def _skip(self, event: Any) -> None:
        """Read past the value that ``event`` begins."""
        depth = 0
        while True:
            depth += _kind(event).endswith("Start")
            depth -= _kind(event).endswith("End")
            if depth == 0:
                return
            if depth > MAX_DEPTH:
                place = _place(event)
                raise NormgenError(Problem(self._display, "nested too deeply", *place))
            event = next(self._events)


def named(route: Route, message: str) -> str:
    """A message about the value at ``route``; the top of the file has no name."""
    return f"{dotted(route)}: {message}" if route else message


def dotted(route: Route) -> str:
    """``kernels[0].affine.bias``; a key that is no plain word stands in quotes."""
    text = ""
    for part in route:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else shown(part)
            text += f".{word}" if text else word
    return text


def shown(value: Any) -> str:
    """A value as its YAML reads, cut to a length that fits a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case list() if not any(isinstance(entry, list | dict) for entry in value):
            return _cut(f"[{', '.join(map(shown, value))}]")
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case str():
            text = value if value.isprintable() else ascii(value)[1:-1]
            return f'"{_cut(text)}"'
        case _:
            return _cut(repr(value))


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _place(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _is_plain(event: Any) -> bool:
    return bool(event.implicit[0])


def _tag(event: Any) -> str:
    return str(event.tag).replace("tag:yaml.org,2002:", "!!")


def _resolve(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) > MAX_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
