"""A config and its family to the distinct norms of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from normgen.errors import NormgenError, Problem
from normgen.families.nearest import unknown
from normgen.families.table import Family, Part, Row, families, kinds
from normgen.families.values import Values
from normgen.fields import MAX_NAME_LENGTH


@dataclass(frozen=True)
class Place:
    """Where a norm stands in the model, and what its size and eps were read from."""

    source: str | None
    modules: tuple[str, ...]
    size: str
    eps: str | float | None
    note: str | None


@dataclass(frozen=True)
class Entry:
    """One entry of the spec: all places of the model whose norms are alike."""

    name: str
    kind: str
    fields: dict[str, Any]
    places: tuple[Place, ...] = ()
    fused: str | None = None


@dataclass(frozen=True)
class Model:
    """What a spec is written from."""

    model_type: str
    entries: tuple[Entry, ...]
    assumed: dict[str, Any]
    left_out: dict[str, str]


def resolve(
    model_type: str, config: dict[str, Any], where: str, like: str | None = None
) -> Model:
    """The norms of a config.

    ``where`` names the config in problems; ``like`` is the known type whose norms an
    unknown ``model_type`` has.  Raises NormgenError for an unknown type, and for a
    value that neither the config nor the table holds.
    """
    family = lookup(like or model_type, "--like" if like else where)
    values = _values(family, config, where, strict=like is not None)
    return model(model_type, values)


def lookup(model_type: str, where: str, prefix: str = "") -> Family:
    """The family of a model type; raises NormgenError with the nearest names."""
    if model_type not in families():
        raise NormgenError(Problem(where, prefix + unknown(model_type, families())))
    return families()[model_type]


def model(model_type: str, values: Values) -> Model:
    """The norms of a family whose values are at hand."""
    entries = _merge(_entries(values, ""))
    everything = list(_tree(values))
    if not entries:
        values.fail("model_type", "the table has no norm for this config")
    return Model(
        model_type,
        tuple(_renamed(entries)),
        {key: value for part in everything for key, value in part.assumed.items()},
        {key: why for part in everything for key, why in part.family.left_out.items()},
    )


def _values(
    family: Family,
    config: dict[str, Any],
    where: str,
    prefix: str = "",
    strict: bool = False,
) -> Values:
    values = Values(family, config, where, prefix, strict)
    for key, part in family.parts.items():
        data = _part(values, key, part)
        if data is not None:
            inner, path = _type_of(values, key, part, data), f"{prefix}{key}."
            inside = lookup(inner, where, path)
            values.parts[key] = _values(inside, data, where, path, strict)
    return values


def _part(values: Values, key: str, part: Part) -> dict[str, Any] | None:
    """A nested config; None where the model lacks it."""
    data = values.config.get(key)
    if data is None and part.optional:
        return None
    if data is None and key == values.family.flat and "hidden_size" in values.config:
        return values.config
    if data is None and values.strict:
        values.missing(key)
    if data is None:
        return part.defaults
    if not isinstance(data, dict):
        values.fail(key, f"expected a nested config, got {data!r}")
    return data


def _type_of(values: Values, key: str, part: Part, data: dict[str, Any]) -> str:
    inner = None if part.fixed else data.get("model_type")
    if inner is None:
        return part.model_type
    if not isinstance(inner, str):
        values.fail(f"{key}.model_type", f"expected a name, got {inner!r}")
    return inner


def _tree(values: Values) -> Iterator[Values]:
    yield values
    for part in values.parts.values():
        yield from _tree(part)


def _entries(values: Values, prefix: str) -> Iterator[Entry]:
    """The norms of the text model first, then those of the model around it."""
    words = {
        key: key.removesuffix("_config").removesuffix("text") for key in values.parts
    }
    for key, word in words.items():
        if not word:
            yield from _entries(values.parts[key], prefix)
    for row in values.family.norms:
        if row.when is None or values.holds(row.when):
            yield from _of_row(row, values, prefix)
    for key, word in words.items():
        if word:
            yield from _entries(values.parts[key], f"{prefix}{word}_")


def _of_row(row: Row, values: Values, prefix: str) -> Iterator[Entry]:
    kind = kinds()[row.kind]
    lengths = values.lengths(row.size, row.stages, row.omit)
    fields: dict[str, Any] = {
        "variant": kind.fields["variant"],
        "hidden_size": lengths if len(lengths) > 1 else lengths[0],
    }
    if row.group_size is not None:
        fields["group_size"] = values.lengths(row.group_size, None, 0)[0]
    if row.eps is not None:
        fields["eps"] = values.eps(row.eps)
    fields |= kind.fields
    eps = values.full(row.eps) if isinstance(row.eps, str) else row.eps
    size = values.full(row.size)
    place = Place(values.family.source(row), row.modules, size, eps, row.note)
    name = f"{prefix}{row.name}"
    yield Entry(name, row.kind, fields, (place,))
    if row.residual is not None:
        post = row.residual == "post_add"
        fused = f"{name}_add" if post else f"{prefix}add_{row.name}"
        yield Entry(fused, row.kind, {**fields, "residual": row.residual}, fused=name)


def _merge(entries: Iterator[Entry]) -> list[Entry]:
    """Entries with equal fields as one, under the first name."""
    merged: list[Entry] = []
    for entry in entries:
        for i, there in enumerate(merged):
            if there.fields == entry.fields:
                merged[i] = replace(there, places=there.places + entry.places)
                break
        else:
            merged.append(entry)
    return merged


def _renamed(entries: list[Entry]) -> Iterator[Entry]:
    """The entries with names that differ and fit; a number tells equal ones apart."""
    taken: set[str] = set()
    for entry in entries:
        name, number = entry.name[:MAX_NAME_LENGTH].rstrip("_"), 1
        while name in taken:
            number += 1
            suffix = f"_{number}"
            name = entry.name[: MAX_NAME_LENGTH - len(suffix)].rstrip("_") + suffix
        taken.add(name)
        yield replace(entry, name=name)
