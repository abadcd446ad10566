"""Norms that between them use every feature, and the modules that they render to."""

from __future__ import annotations

import functools
from pathlib import Path

from support.build import make, text_of
from support.fields import VALUES, fields_of, label, norm_of, problems
from support.pairs import covering_array

from normgen.loader import load
from normgen.spec import LARGEST_REGISTER_ROW, Norm, SpecFile

ROOT = Path(__file__).resolve().parent.parent
SPECS = tuple(sorted((ROOT / "specs").glob("*.yaml")))
GENERATED = ROOT / "generated"
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


@functools.cache
def texts() -> dict[str, str]:
    """Every module that the style tests look at, below its header."""
    found = {name: text_of(norm) for name, norm in covering_norms().items()}
    for path in SPECS:
        found[path.stem] = text_of(*spec_of(path).kernels)
    found["llama, each by itself"] = text_of(spec_of(SPECS[0]).kernels[0])
    plain = make(name="plain", hidden_size=LENGTHS)
    bare = make(name="bare", weight="none", backward=False, hidden_size=256)
    found["two unlike norms"] = text_of(plain, bare)
    return found
