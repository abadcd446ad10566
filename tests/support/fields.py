"""Every field of the spec with every value that it takes."""

from __future__ import annotations

import typing
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from normgen.rules import conflicts
from normgen.spec import Norm
from support.build import BLOCKS, make, nested
from support.pairs import repair

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

#: The field of each block that says whether there is such a block at all.
OWNERS = {
    "gate": "gate.position",
    "modulation": "modulation.operands",
    "branch_scale": "branch_scale.per",
}
CONSTANT = 0.3  # of a branch

#: Fields of the whole language, in blocks whose values meet in one formula.  None
#: stands for a block or a field that is absent.
FEATURES: dict[str, tuple[Hashable, ...]] = {
    "variant": ("rms_norm", "layer_norm", "l2_norm"),
    "eps": (1e-5, 0.5, "argument"),
    "eps_placement": (
        *("inside_sqrt", "outside_sqrt", "clamp_norm", "clamp_stat", "none"),
    ),
    "group_size": (None, LENGTH // 3),
    "axis": ("last", "channel"),
    "statistics.precision": ("float32", "io", "io_stepwise"),
    "statistics.root": ("rsqrt", "sqrt"),
    "statistics.centered": (True, False),
    "statistics.variance": ("biased", "unbiased"),
    "statistics.columns": ("all", 5, LENGTH),
    "max_norm": (None, 12.0),
    "scale": (None, 0.3, "sqrt_hidden_size"),
    "rounding.input": ("none", "io", "weight"),
    "rounding.rstd": ("none", "io"),
    "weight": ("vector", "none", "per_head", "per_group"),
    "affine.position": ("after", "before", "factor"),
    "second_affine": (False, True),
    "gate.position": (None, "after", "before"),
    "gate.activation": ("silu", "sigmoid"),
    "gate.precision": ("float32", "io"),
    "modulation.operands": (None, "scale_shift", "scale", "shift"),
    "modulation.per": ("sample", "row"),
    "modulation.factor": ("one_plus", "plain", "sigmoid"),
    "modulation.precision": ("param", "float32"),
    "modulation.second": (False, True),
    "post_activation": (
        *("none", "relu", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid"),
    ),
    "branch_scale.per": (None, "constant", "channel", "sample", "row"),
    "branch_scale.activation": ("none", "tanh"),
    "branch_scale.precision": ("param", "float32"),
    "residual_scale": (None, 0.3),
    "output": ("normalized", "factor"),
}
#: Every field with every value.
LANGUAGE = {**VALUES, **FEATURES}

#: What a feature is tried beside.
BESIDE: dict[str, dict[str, Hashable]] = {
    "gate": {"gate.position": "after"},
    "modulation": {"modulation.operands": "scale_shift"},
    "branch_scale": {"branch_scale.per": "channel", "residual": "post_add"},
    "max_norm": {"variant": "l2_norm", "eps_placement": "outside_sqrt"},
    "output": {"weight": "none"},
}

#: The dtypes that a tensor may have when its norm runs.
IO = (torch.float32, torch.bfloat16, torch.float16)


def norm_of(fields: dict[str, Any]) -> Norm | None:
    """The norm of these fields, or None where they contradict each other."""
    try:
        return make(**{"name": "some_norm", **spelled(fields)})
    except ValidationError:
        return None


def unchecked(fields: dict[str, Any]) -> Norm:
    """The same without validation, for counting the rules that fields break."""
    given = nested({"name": "some_norm", **spelled(fields)})
    for name, model in BLOCKS.items():
        if name in given:
            given[name] = model.model_construct(**given[name])
    return Norm.model_construct(**given)


def spelled(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields as a spec has them: eps and blocks left out where there are none."""
    made = {}
    for field, value in fields.items():
        owner = OWNERS.get(field.partition(".")[0])
        absent = owner is not None and fields.get(owner) is None
        if field == owner and value == "constant":
            made["branch_scale.constant"] = CONSTANT
        elif not absent:
            made[field] = value
    if fields.get("eps_placement") == "none":
        made.pop("eps", None)
    elif fields.get("eps", 0) is None:
        made["eps"] = 1e-5
    return made


def single_values() -> Iterator[tuple[str, Norm]]:
    """(readable id, norm) for each value of each field, all else at its default."""
    for field, values in VALUES.items():
        for value in values:
            fields = {field: value, **COMPANIONS.get((field, value), {})}
            norm = norm_of(fields)
            assert norm is not None, (field, value)
            yield f"{field}={label(value)}", norm
    plain = {field: values[0] for field, values in LANGUAGE.items()}
    for field, values in FEATURES.items():
        for value in values:
            pair = frozenset({(field, value)})
            # with as few other changes as make it valid
            beside = BESIDE.get(field.partition(".")[0], {}) | {field: value}
            fields = repair(plain | beside, pair, LANGUAGE, problems)
            assert fields is not None, (field, value)
            if value not in VALUES.get(field, ()) and value != values[0]:
                yield f"{field}={label(value)}", norm_of(fields)
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
        {"variant": "layer_norm", "output": "factor", "weight": "none"},
        {"modulation.operands": "scale_shift", "modulation.second": True},
        {"axis": "channel", "variant": "layer_norm", "bias": True},
        {"weight": "per_head", "bias": True, "variant": "layer_norm"},
    ):
        norm = norm_of(fields)
        assert norm is not None, fields
        yield ",".join(f"{k}={label(v)}" for k, v in fields.items()), norm


#: Axes of a combination that are facts of the tensors, not fields of the spec.
TENSOR_FACTS = ("io", "free", "others")


def fields_of(combination: dict[str, Any]) -> dict[str, Any]:
    """The fields of the spec in a combination of :mod:`support.pairs`."""
    return {k: v for k, v in combination.items() if k not in TENSOR_FACTS}


def problems(combination: dict[str, Any]) -> int:
    """How many rules a combination breaks, its list of dtypes included."""
    fields = fields_of(combination)
    norm = unchecked(fields)
    io = combination.get("io")
    wrong_dtype = io is not None and not accepts(norm, io)
    return len(list(conflicts(norm))) + wrong_dtype + len(list(moot(fields)))


def moot(fields: dict[str, Any]) -> Iterator[str]:
    """Fields away from their default that nothing in the spec is there for."""
    for field, value in fields.items():
        owner = OWNERS.get(field.partition(".")[0])
        if owner is None or field == owner or value == LANGUAGE[field][0]:
            continue
        if fields.get(owner) is None:
            yield field
    if fields.get("eps_placement") == "none" and fields.get("eps", 1e-5) != 1e-5:
        yield "eps"


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
