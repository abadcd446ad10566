"""What pydantic found wrong, as sentences with a place.

One table, :data:`SENTENCES`, holds every wording; the rest of the module finds what to
put into its holes: the value as written, the nearest name, the place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from normgen.errors import Problem
from normgen.spec import SpecFile
from normgen.yaml_reader import Document, Place, Route, dotted, named, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SENTENCES = {
    "missing": "required field is missing",
    "extra_forbidden": "unknown field",
    "bool_type": "expected true or false, got {got}",
    "int_type": "expected an integer, got {got}",
    "float_type": "expected a number, got {got}",
    "finite_number": "expected a finite number, got {got}",
    "string_type": "expected a string, got {got}",
    "tuple_type": "expected a list, got {got}",
    "model_type": "expected a mapping, got {got}",
    "literal_error": "expected {expected}, got {got}",
    "too_short": "expected at least {min_length} entry, got {got}",
    "greater_than": "expected a number above {gt:g}, got {got}",
    "greater_than_equal": "expected at least {ge:g}, got {got}",
    "less_than_equal": "expected at most {le:g}, got {got}",
    "normgen": "{message}",
}
#: How the reader tells that it passed over a key of a mapping.
PASSED_OVER = re.compile(r"(?:(?P<mapping>\S+): )?(?:merge keys|a key must be) ")
NEAR = 0.6  # how alike two names are (difflib's ratio) before one is offered
NEAR_ELSEWHERE = 0.8  # the same for a name that belongs one level off


def problems(
    error: ValidationError, document: Document, display: str
) -> Iterator[Problem]:
    """Every fault of the data in ``document``, each once, in no particular order."""
    gaps = _gaps(document)
    details = [
        detail
        for detail in error.errors(include_url=False)
        if _is_told(detail, document) and not _is_of_gap(detail, gaps)
    ]
    newer = [d for d in details if d["loc"] == ("version",) and d["type"] == "normgen"]
    unknown = [d["loc"] for d in details if d["type"] == "extra_forbidden"]
    misspelled = {_nearest_field(route) for route in unknown}
    for detail in newer or details:
        route = detail["loc"]
        if detail["type"] == "missing" and route in misspelled:
            continue  # it is there, under the unknown name that was told
        if detail["type"] == "conflicts":
            for field, message in detail["ctx"]["conflicts"]:
                at = (*route, *_parsed(field))
                yield _problem(display, at, document.place(at), message)
        else:
            place = _place(detail, document)
            yield _problem(display, route, place, _sentence(detail))


def _is_told(detail: ErrorDetails, document: Document) -> bool:
    """False for the echoes of another fault: of a refused value, or of an entry."""
    route = detail["loc"]
    if any(route[: len(refused)] == refused for refused in document.unusable):
        return False
    # A list is also "too short" where its entries are wrong: it counts only right ones.
    return detail["type"] != "too_short" or not detail["input"]


def _gaps(document: Document) -> set[Route]:
    """The mappings that the reader passed over a key of."""
    found = map(PASSED_OVER.match, (p.message for p in document.problems))
    return {_parsed(match["mapping"] or "") for match in found if match}


def _is_of_gap(detail: ErrorDetails, gaps: set[Route]) -> bool:
    """Whether a key that was passed over may hold what is found wanting."""
    route = detail["loc"]
    if detail["type"] == "missing":
        return route[:-1] in gaps
    return detail["type"] == "conflicts" and any(
        route and gap[: len(route)] == route for gap in gaps
    )


def _problem(display: str, route: Route, place: Place, message: str) -> Problem:
    return Problem(display, named(route, message), *place)


def _place(detail: ErrorDetails, document: Document) -> Place:
    route = detail["loc"]
    if detail["type"] == "extra_forbidden":
        return document.keys.get(route) or document.place(route)
    return document.place(route)


def _sentence(detail: ErrorDetails) -> str:
    value = detail["input"]
    facts: dict[str, Any] = {**detail.get("ctx", {}), "got": shown(value)}
    if detail["type"] == "literal_error":
        facts["expected"] = facts["expected"].replace("'", '"')
    if detail["type"] == "normgen":
        facts["message"] = facts["message"].replace(repr(value), shown(value))
    template = SENTENCES.get(detail["type"])
    sentence = template.format(**facts) if template else detail["msg"]
    return " ".join(sentence.split()) + _hint(detail)


def _hint(detail: ErrorDetails) -> str:
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            route, near = detail["loc"], _nearest_field(detail["loc"])
            if near is None:
                return ""
            below = near[: len(route) - 1] == route[:-1]
            name = dotted(near[len(route) - 1 :] if below else near)
            return f'; did you mean "{name}"?'
        case "literal_error" if isinstance(value, str):
            choices = detail["ctx"]["expected"].replace(" or ", ", ").split(", ")
            names = [choice.strip("'") for choice in choices]
            best = max(names, key=lambda name: _likeness(value, name))
            return f'; did you mean "{best}"?' if _likeness(value, best) >= NEAR else ""
        case "model_type":
            return _block_hint(detail["loc"], value)
        case "int_type" | "float_type" if isinstance(value, str) and _is_number(value):
            return "; write the number without quotes"
        case "tuple_type" if isinstance(value, str):
            return f"; write [{value}]" if value.isidentifier() else ""
        case "tuple_type" if isinstance(value, Mapping):
            return '; begin each entry with "- "'
    return ""


def _block_hint(route: Route, value: Any) -> str:
    """What a plain value in the place of a block was meant to be, if that is clear."""
    if value is True:
        return "; write {} for the defaults"
    fields = _model_at(route).model_fields
    if isinstance(value, float | int) and "constant" in fields:
        return f"; write {{constant: {value}}}"
    meant = [
        name
        for name, info in fields.items()
        if isinstance(value, str) and value in _choices(info.annotation)
    ]
    return f"; write {{{meant[0]}: {value}}}" if len(meant) == 1 else ""


def _choices(annotation: Any) -> list[Any]:
    """The literals that an annotation allows."""
    found = []
    for inner in get_args(annotation):
        found += _choices(inner) if get_args(inner) else [inner]
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _nearest_field(route: Route) -> Route | None:
    """The field that an unknown key most likely stands for, also one level off."""
    unknown, parent = str(route[-1]), route[:-1]
    best, nearest = 0.0, None
    for candidate in _candidates(parent):
        same_level = candidate[:-1] == parent
        score = _likeness(unknown, str(candidate[-1]))
        if score >= (NEAR if same_level else NEAR_ELSEWHERE) and score > best:
            best, nearest = score, candidate
    return nearest


def _candidates(parent: Route) -> Iterator[Route]:
    """Fields near ``parent``: of it, of the mappings in it, of the mapping above it and
    of the mappings beside it."""
    yield from _fields(parent)
    if parent:
        yield from _fields(parent[:-2] if isinstance(parent[-1], int) else parent[:-1])


def _fields(route: Route) -> Iterator[Route]:
    """Fields of the mapping at ``route``, then of the mappings in it."""
    model = _model_at(route)
    for name in model.model_fields:
        yield (*route, name)
    for name, info in model.model_fields.items():
        inner = _model_in(info.annotation)
        entry: Route = (name,) if inner is info.annotation else (name, 0)
        for field in inner.model_fields if inner else ():
            yield (*route, *entry, field)


def _model_at(route: Route) -> type[BaseModel]:
    model: type[BaseModel] = SpecFile
    for part in route:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if get_args(annotation):
        inner = map(_model_in, get_args(annotation))
        return next((model for model in inner if model), None)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _likeness(written: str, name: str) -> float:
    return SequenceMatcher(None, written.lower(), name).ratio()


def _parsed(field: str) -> Route:
    """``kernels[1].name`` as a route; the inverse of ``dotted`` for plain names."""
    parts = field.replace("]", "").replace("[", ".").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts if part)
