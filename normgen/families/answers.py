"""The norm of an unknown model, from what a person answered."""

from __future__ import annotations

from typing import Any

from normgen.families.resolve import Entry, Model
from normgen.families.table import Family
from normgen.families.values import Values


def answered(
    model_type: str,
    config: dict[str, Any],
    where: str,
    answers: dict[str, Any],
    bias: bool,
) -> Model:
    """A model with one norm; sizes and eps may be keys of the config.

    Raises NormgenError for a value that is no size, no eps, or no key of the config.
    """
    family = Family(left_out={model_type: "unknown"})
    values = Values(family, config, where, strict=True)
    lengths = values.lengths(answers["hidden_size"], None, 0)
    affine: dict[str, Any] = {"bias": True} if bias else {}
    if answers["weight_offset"]:
        affine["weight_offset"] = answers["weight_offset"]
    fields: dict[str, Any] = {
        "variant": answers["variant"],
        "hidden_size": lengths if len(lengths) > 1 else lengths[0],
        "eps": values.eps(_number_or_key(answers["eps"])),
        "affine": affine,
        "rounding": {"normalized": answers["rounding_normalized"]},
        "out_dtype": answers["out_dtype"],
    }
    if not affine:
        del fields["affine"]
    entry = Entry(answers["variant"], "", fields)
    return Model(model_type, (entry,), {}, {})


def _number_or_key(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
