"""What many cases share: specs of classes without a file of their own."""

from __future__ import annotations

from typing import Any

HF = "transformers.models"


def hf(model: str, name: str) -> str:
    """The import path of a name in a model of transformers."""
    return f"{HF}.{model}.modeling_{model}.{name}"


def cast_before(eps: float, **fields: Any) -> dict[str, Any]:
    """R1: x_hat rounded to the dtype of x, then the weight, by promotion."""
    common = {"variant": "rms_norm", "eps": eps, "out_dtype": "promote"}
    return {**common, "rounding": {"normalized": "io"}, **fields}


def cast_last(eps: float, **fields: Any) -> dict[str, Any]:
    """R2: the weight in float32, one rounding."""
    return {"variant": "rms_norm", "eps": eps, **fields}


def cast_to_weight(eps: float, **fields: Any) -> dict[str, Any]:
    """R4: x_hat rounded to the dtype of the weight, then the weight."""
    common = {"variant": "rms_norm", "eps": eps, "out_dtype": "promote"}
    return {**common, "rounding": {"normalized": "weight"}, **fields}


def torch_layer_norm(eps: float, **fields: Any) -> dict[str, Any]:
    """L1: weight and bias in float32, one rounding."""
    common = {"variant": "layer_norm", "eps": eps, "affine": {"bias": True}}
    return {**common, **fields}


def modulated(eps: float, **fields: Any) -> dict[str, Any]:
    """A1: a LayerNorm without weight, rounded, then modulated step by step."""
    return {
        "variant": "layer_norm",
        "eps": eps,
        "affine": {"weight": "none"},
        "rounding": {"normalized": "io"},
        "modulation": {"operands": "scale_shift"},
        "out_dtype": "promote",
        **fields,
    }
