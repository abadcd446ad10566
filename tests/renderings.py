"""Norms that between them use every feature, and the modules that they render to."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

from support.build import make, text_of
from support.fields import VALUES, fields_of, label, norm_of, problems
from support.pairs import covering_array

from normgen.fields import LARGEST_CHANNEL_ROW, LARGEST_REGISTER_ROW
from normgen.loader import load
from normgen.spec import Norm, SpecFile

ROOT = Path(__file__).resolve().parent.parent
SPECS = tuple(sorted((ROOT / "specs").glob("*.yaml")))
GENERATED = ROOT / "generated"
LLAMA = ROOT / "specs" / "llama.yaml"
#: As long as a name may be: lines are as wide as they get.
LONG_NAME = "longest_norm_name_of_all"
#: Every strategy in both directions, blocks filled and not, the shortest row and 2**20.
LENGTHS = (1, 16, 72, 500, 768, 1024, 1152, 2048, 4096, 5120, 8192, 16384, 2**15, 2**20)

#: Fields that meet in no pair of values, but only three at a time or more.
COMBINED = (
    {"residual": "pre_add", "backward": False, "batch_invariant": False},
    {"residual": "pre_add", "save_stats": "always", "variant": "layer_norm"},
    {
        "residual": "pre_add",
        "residual_in_place": True,
        "backward": False,
        "save_stats": "none",
        "weight": "none",
    },
    {
        "variant": "layer_norm",
        "bias": True,
        "eps": "argument",
        "eps_placement": "outside_sqrt",
        "residual": "pre_add",
        "residual_sum": "float32",
        "residual_dtype": "float32",
        "normalized": "weight",
        "affine_rounding": "io",
        "weight_offset": 1.0,
        "offset_precision": "param",
        "out_dtype": "promote",
        "save_stats": "always",
        "batch_invariant": False,
    },
    {"residual": "post_add", "residual_dtype": "float32", "out_dtype": "promote"},
)

VARIANTS = ("rms_norm", "layer_norm", "l2_norm")
PLACEMENTS = ("inside_sqrt", "outside_sqrt", "clamp_norm", "clamp_stat", "none")
PRECISIONS = ("float32", "io", "io_stepwise")
WIDTHS = ("param", "float32")

#: Features in dotted fields: each value of every field, and those that meet in code.
FEATURES: tuple[dict[str, Any], ...] = (
    *(
        {
            "variant": VARIANTS[i],
            "eps_placement": PLACEMENTS[j],
            "statistics.precision": PRECISIONS[(i + j) % 3],
            "statistics.root": root,
        }
        for i, j in itertools.product(range(3), range(5))
        for root in ("rsqrt", "sqrt")
    ),
    *(
        {
            "variant": "layer_norm",
            "statistics.centered": centered,
            "statistics.variance": "unbiased",
            "statistics.precision": precision,
            "save_stats": "always",
        }
        for centered in (True, False)
        for precision in ("float32", "io", "io_stepwise")
    ),
    *(
        {"variant": "l2_norm", "max_norm": 2.5, "eps_placement": placement}
        | {"statistics.precision": precision}
        for placement in ("outside_sqrt", "none")
        for precision in ("float32", "io")
    ),
    {"statistics.columns": 1, "weight": "vector"},
    {"variant": "l2_norm", "statistics.columns": 1, "statistics.precision": "io"},
    *(
        {"variant": variant, "output": "factor", "weight": "none"} | more
        for variant in ("rms_norm", "layer_norm", "l2_norm")
        for more in ({}, {"eps_placement": "clamp_norm"}, {"out_dtype": "float32"})
    ),
    {"output": "factor", "weight": "none", "axis": "channel", "backward": False},
    {"rounding.input": "io", "residual": "pre_add", "residual_sum": "float32"},
    {"rounding.input": "weight", "affine.position": "before", "affine.dtype": "same"},
    {"rounding.rstd": "io", "rounding.normalized": "weight", "scale": 0.5},
    {"scale": "sqrt_hidden_size", "rounding.normalized": "io"},
    {
        "affine.position": "before",
        "affine.weight_offset": 1.0,
        "gate.position": "before",
    },
    {"affine.position": "factor", "affine.bias": True},
    {"affine.position": "factor", "statistics.precision": "io"},
    *(
        {"affine.weight": "per_head", "affine.bias": True, "variant": "layer_norm"}
        | more
        for more in (
            {},
            {"residual": "pre_add", "save_stats": "always"},
            {"affine.weight_offset": 1.0, "affine.offset_precision": "param"},
            {"modulation.per": "sample", "gate.position": "after"},
            {"backward": False, "residual": "post_add", "batch_invariant": False},
            {"second_affine": True},
        )
    ),
    *(
        {"group_size": 64, "affine.weight": weight, "affine.bias": True} | more
        for weight, more in (
            ("vector", {}),
            ("none", {"variant": "layer_norm", "save_stats": "always"}),
            ("per_group", {"variant": "layer_norm", "residual": "pre_add"}),
            ("per_group", {"modulation.per": "sample", "post_activation": "tanh"}),
            ("vector", {"modulation.per": "sample", "modulation.second": True}),
            ("vector", {"gate.precision": "io", "backward": False, "eps": "argument"}),
            ("per_group", {"strategy": "row", "gate.position": "before"}),
            ("vector", {"strategy": "loop", "residual": "pre_add"}),
            (
                "per_group",
                {"strategy": "loop", "affine.position": "before"}
                | {"affine.bias": False},
            ),
        )
    ),
    *(
        {"axis": "channel", "affine.bias": True} | more
        for more in (
            {},
            {"variant": "layer_norm", "save_stats": "always", "residual": "pre_add"},
            {"modulation.per": "sample", "post_activation": "silu"},
            {"gate.position": "after", "residual": "post_add", "backward": False},
            {
                "batch_invariant": False,
                "branch_scale.per": "row",
                "residual": "pre_add",
            },
            {"hidden_size": "dynamic", "variant": "l2_norm", "eps": "argument"},
            {"variant": "layer_norm", "eps_placement": "clamp_stat"},
        )
    ),
    {"second_affine": True, "affine.bias": True, "rounding.affine": "io"},
    {"second_affine": True, "affine.weight_offset": 1.0, "residual": "pre_add"},
    {"second_affine": True, "weight": "none", "affine.bias": True},
    *(
        {"gate.position": position, "gate.activation": act, "gate.precision": precision}
        for position in ("after", "before")
        for act in ("silu", "sigmoid")
        for precision in ("float32", "io")
    ),
    *(
        {
            "modulation.operands": operands,
            "modulation.per": ("sample", "row")[i % 2],
            "modulation.factor": factor,
            "modulation.precision": precision,
        }
        for i, (factor, operands, precision) in enumerate(
            itertools.product(
                ("one_plus", "plain", "sigmoid"), ("scale_shift", "scale"), WIDTHS
            )
        )
    ),
    {"modulation.operands": "shift"},
    {"modulation.operands": "shift", "modulation.per": "row"}
    | {"modulation.precision": "float32"},
    {"modulation.second": True, "affine.bias": True},
    {
        "modulation.second": True,
        "modulation.per": "row",
        "modulation.factor": "sigmoid",
    },
    {"modulation.second": True, "modulation.operands": "shift", "residual": "pre_add"},
    {"modulation.second": True, "modulation.operands": "scale", "backward": False},
    *(
        {"post_activation": act, "affine.bias": True, "rounding.normalized": "io"}
        for act in ("relu", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid")
    ),
    *(
        {"residual": residual, "branch_scale.constant": 0.5, "residual_scale": 0.25}
        | {"residual_sum": residual_sum}
        for residual in ("pre_add", "post_add")
        for residual_sum in ("rounded", "float32")
    ),
    *(
        {
            "residual": ("pre_add", "post_add")[i % 2],
            "branch_scale.per": per,
            "branch_scale.activation": act,
            "branch_scale.precision": WIDTHS[(i // 2) % 2],
        }
        for per in ("channel", "sample", "row")
        for act in ("none", "tanh")
        for i in range(3)
    ),
    *(
        {
            "residual": residual,
            "residual_in_place": True,
            "backward": False,
            "branch_scale.per": "sample",
            "residual_dtype": "float32",
        }
        for residual in ("pre_add", "post_add")
    ),
    {
        "variant": "layer_norm",
        "affine.bias": True,
        "affine.weight_offset": 1.0,
        "affine.offset_precision": "param",
        "modulation.per": "sample",
        "gate.position": "after",
        "gate.precision": "io",
        "post_activation": "gelu_tanh",
        "residual": "post_add",
        "branch_scale.per": "sample",
        "branch_scale.activation": "tanh",
        "residual_scale": 0.25,
        "rounding.input": "io",
        "rounding.normalized": "io",
        "rounding.affine": "io",
        "scale": 0.5,
        "eps": "argument",
        "save_stats": "always",
        "out_dtype": "promote",
    },
    *(
        {"replaces": ("package.module.Norm",), **more}
        for more in (
            {},
            {"eps": "argument", "weight": "none", "hidden_size": 4096},
            {"eps": "argument", "weight": "none", "variant": "layer_norm"},
            {"group_size": 64, "affine.weight": "per_group", "hidden_size": 4096},
            {"group_size": 64, "affine.weight": "none", "gate.position": "after"},
            {"affine.weight": "per_head", "affine.bias": True, "affine.dtype": "same"},
            {
                "replaces": (
                    "package.module.Norm",
                    "a." + "very_long_module." * 8 + "Norm",
                )
            },
            {"axis": "channel", "variant": "layer_norm", "backward": False},
            {"eps_placement": "none", "variant": "l2_norm"},
        )
    ),
    {
        "affine.position": "before",
        "affine.bias": False,
        "gate.position": "before",
        "residual": "pre_add",
        "branch_scale.per": "row",
        "modulation.per": "row",
        "modulation.second": True,
        "rounding.rstd": "io",
    },
)


def spec_of(path: Path) -> SpecFile:
    """A spec of this repository."""
    return load(path, f"specs/{path.name}")


@functools.cache
def repository_norms() -> dict[str, Norm]:
    """The norms of every spec that is checked in, by ``spec.name``."""
    return {
        f"{path.stem}.{norm.name}": norm
        for path in SPECS
        for norm in spec_of(path).kernels
    }


@functools.cache
def covering_norms() -> dict[str, Norm]:
    """All pairs of field values, with a long name and many lengths."""
    combinations = [*map(fields_of, covering_array(VALUES, problems)[0])]
    for fields in COMBINED:
        combinations += [{**fields, "strategy": s} for s in VALUES["strategy"]]
    found = {}
    for i, fields in enumerate(combinations):
        if isinstance(fields.get("hidden_size"), tuple):
            limit = LARGEST_REGISTER_ROW.get(fields["strategy"], LENGTHS[-1])
            fields["hidden_size"] = tuple(n for n in LENGTHS if n <= limit)
        norm = norm_of({**fields, "name": LONG_NAME})
        assert norm is not None, fields
        plain = {k: label(v) for k, v in fields.items() if v != VALUES[k][0]}
        found[f"{i}:" + ",".join(f"{k}={v}" for k, v in plain.items())] = norm
    return found


def lengths_of(fields: dict[str, Any]) -> tuple[int, ...]:
    """The row lengths that a norm of these fields may have."""
    found = LENGTHS
    if fields.get("statistics.variance") == "unbiased":
        found = tuple(n for n in found if n > 1)
    if fields.get("axis") == "channel":
        found = tuple(n for n in found if n <= LARGEST_CHANNEL_ROW)
    if "group_size" in fields:
        found = tuple(n for n in found if n % fields["group_size"] == 0)
    return found


@functools.cache
def feature_norms() -> dict[str, Norm]:
    """Every feature, with a long name and many lengths."""
    found = {}
    for i, fields in enumerate(FEATURES):
        known = {"hidden_size": lengths_of(fields), **fields}
        if fields.get("scale") == "sqrt_hidden_size":
            known["hidden_size"] = 4096
        told = ",".join(f"{k}={v}" for k, v in fields.items())
        found[f"feature {i}:{told}"] = make(**{**known, "name": LONG_NAME})
    return found


@functools.cache
def every_norm() -> dict[str, Norm]:
    """The norms of the repository, all pairs of field values, and every feature."""
    return {**repository_norms(), **covering_norms(), **feature_norms()}


@functools.cache
def texts() -> dict[str, str]:
    """Every module that the style tests look at, below its header."""
    norms = {**covering_norms(), **feature_norms()}
    found = {name: text_of(norm) for name, norm in norms.items()}
    for path in SPECS:
        found[path.stem] = text_of(*spec_of(path).kernels)
    found["llama, each by itself"] = text_of(spec_of(LLAMA).kernels[0])
    plain = make(name="plain", hidden_size=LENGTHS)
    bare = make(name="bare", weight="none", backward=False, hidden_size=256)
    found["two unlike norms"] = text_of(plain, bare)
    return found
