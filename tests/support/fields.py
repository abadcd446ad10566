"""Every field of the spec with every value that it takes."""

from __future__ import annotations

import typing
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from normgen.spec import Affine, Norm, Rounding, conflicts
from support.build import flat_to_nested, make

LENGTH = 72  # partly fills its block of 128

#: Flat field (see support.build.make) -> its values.
VALUES: dict[str, tuple[Hashable, ...]] = {
    "variant": ("rms_norm", "layer_norm"),
    "hidden_size": (LENGTH, (40, LENGTH), "dynamic"),
    "dtype": (
        ("float32", "bfloat16", "float16"),
        ("float32",),
        ("bfloat16",),
        ("float16",),
    ),
    "eps": (1e-5, 1e-12, "argument"),
    "eps_placement": ("inside_sqrt", "outside_sqrt"),
    "weight": ("vector", "none"),
    "bias": (False, True),
    "parameters": ("any", "same", "float32", "bfloat16", "float16"),
    "weight_offset": (0.0, 1.0, -0.3),
    "offset_precision": ("float32", "param"),
    "normalized": ("none", "io", "weight"),
    "affine_rounding": ("none", "io"),
    "out_dtype": ("same", "promote", "float32", "bfloat16", "float16"),
    "residual": ("none", "pre_add", "post_add"),
    "residual_sum": ("rounded", "float32"),
    "residual_dtype": ("same", "float32"),
    "residual_in_place": (False, True),
    "save_stats": ("auto", "always", "none"),
    "backward": (True, False),
    "strategy": ("auto", "row", "rows", "loop"),
    "batch_invariant": (True, False),
}

#: What a value needs beside it to be valid.
COMPANIONS: dict[tuple[str, Hashable], dict[str, Any]] = {
    ("offset_precision", "param"): {"weight_offset": 1.0},
    ("residual_sum", "float32"): {"residual": "pre_add"},
    ("residual_dtype", "float32"): {"residual": "pre_add"},
    ("residual_in_place", True): {"residual": "pre_add", "backward": False},
    ("save_stats", "none"): {"backward": False},
}

#: The dtypes that a tensor may have when its norm runs.
IO = (torch.float32, torch.bfloat16, torch.float16)


def norm_of(fields: dict[str, Any]) -> Norm | None:
    """The norm of these fields, or None where they contradict each other."""
    try:
        return make(name=fields.get("name", "some_norm"), **_without_name(fields))
    except ValidationError:
        return None


def unchecked(fields: dict[str, Any]) -> Norm:
    """The same without validation, for counting the rules that fields break."""
    top, affine, rounding = flat_to_nested({"name": "some_norm", **fields})
    return Norm.model_construct(
        affine=Affine.model_construct(**affine),
        rounding=Rounding.model_construct(**rounding),
        **top,
    )


def _without_name(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k != "name"}


def single_values() -> Iterator[tuple[str, Norm]]:
    """(readable id, norm) for each value of each field, all else at its default."""
    for field, values in VALUES.items():
        for value in values:
            fields = {field: value, **COMPANIONS.get((field, value), {})}
            norm = norm_of(fields)
            assert norm is not None, (field, value)
            yield f"{field}={label(value)}", norm
    # values that mean something else beside another one
    for fields in (
        {"residual": "post_add", "residual_sum": "float32"},
        {"residual": "post_add", "residual_dtype": "float32"},
        {"residual": "post_add", "residual_in_place": True, "backward": False},
        {"variant": "layer_norm", "eps_placement": "outside_sqrt", "bias": True},
        {"variant": "layer_norm", "weight": "none", "normalized": "io"},
        {"variant": "layer_norm", "save_stats": "always", "bias": True},
        {"residual": "pre_add", "residual_sum": "float32", "residual_dtype": "float32"},
        {"weight": "none", "bias": True},
    ):
        norm = norm_of(fields)
        assert norm is not None, fields
        yield ",".join(f"{k}={label(v)}" for k, v in fields.items()), norm


#: Axes of a combination that are facts of the tensors, not fields of the spec.
TENSOR_FACTS = ("io", "free")


def fields_of(combination: dict[str, Any]) -> dict[str, Any]:
    """The fields of the spec in a combination of :mod:`support.pairs`."""
    return {k: v for k, v in combination.items() if k not in TENSOR_FACTS}


def problems(combination: dict[str, Any]) -> int:
    """How many rules a combination breaks, its list of dtypes included."""
    norm = unchecked(fields_of(combination))
    io = combination.get("io")
    wrong_dtype = io is not None and not accepts(norm, io)
    return len(list(conflicts(norm))) + wrong_dtype


def label(value: Hashable) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def accepts(norm: Norm, io: torch.dtype) -> bool:
    return str(io).removeprefix("torch.") in norm.dtype


def literals(model: type[BaseModel]) -> Iterator[tuple[str, Hashable]]:
    """Every (field name, value) that a model's Literal annotations list."""

    def walk(annotation: Any) -> Iterator[Hashable]:
        if typing.get_origin(annotation) is typing.Literal:
            yield from typing.get_args(annotation)
        elif annotation is bool:
            yield from (False, True)
        else:
            for argument in typing.get_args(annotation):
                yield from walk(argument)

    for name, field in model.model_fields.items():
        for value in walk(field.annotation):
            yield name, value
