"""Norms of timm.layers, loaded without timm's package import."""

from __future__ import annotations

from typing import Any

from torch import nn

from conformance.case import Case
from conformance.shapes import cast_last, torch_layer_norm

NORM = "timm.layers.norm"
ACT = "timm.layers.norm_act"
IMAGE: dict[str, Any] = {"lead": (2,), "after": (3, 4)}
RELU = {"rounding": {"affine": "io"}, "post_activation": "relu"}
GELU = {"rounding": {"affine": "io"}, "post_activation": "gelu"}
SILU = {"rounding": {"affine": "io"}, "post_activation": "silu"}
STEPWISE = {"statistics": {"precision": "io_stepwise"}, "out_dtype": "promote"}


CASES: tuple[Case, ...] = (
    Case(
        "timm",
        f"{NORM}.LayerNorm",
        "L1",
        torch_layer_norm(1e-6),
        192,
        (192,),
        fused="layer_norm",
    ),
    Case(
        "timm",
        f"{NORM}.LayerNormFp32",
        "L11",
        torch_layer_norm(1e-6),
        384,
        (384,),
        fused="layer_norm",
    ),
    Case(
        "timm",
        f"{NORM}.LayerNorm2d",
        "L10",
        torch_layer_norm(1e-6, axis="channel"),
        96,
        (96,),
        fused="layer_norm",
        **IMAGE,
    ),
    Case(
        "timm",
        f"{NORM}.LayerNorm2dFp32",
        "L10",
        torch_layer_norm(1e-6, axis="channel"),
        192,
        (192,),
        fused="layer_norm",
        **IMAGE,
    ),
    Case("timm", f"{NORM}.RmsNorm", "R2", cast_last(1e-6), 320, (320,)),
    Case("timm", f"{NORM}.RmsNormFp32", "R2", cast_last(1e-6), 640, (640,)),
    Case(
        "timm",
        f"{NORM}.RmsNorm2d",
        "R6",
        cast_last(1e-6, axis="channel", **STEPWISE),
        96,
        (96,),
        **IMAGE,
    ),
    Case(
        "timm",
        f"{NORM}.RmsNorm2dFp32",
        "R2",
        cast_last(1e-6, axis="channel"),
        96,
        (96,),
        **IMAGE,
    ),
    Case(
        "timm",
        f"{NORM}.SimpleNorm",
        "L8",
        "timm_simple_norm:simple_norm",
        256,
        (256,),
        fused="var",
    ),
    Case(
        "timm",
        f"{NORM}.SimpleNormFp32",
        "L8",
        torch_layer_norm(
            1e-6,
            affine={},
            statistics={"centered": False, "variance": "unbiased"},
        ),
        256,
        (256,),
        fused="var",
    ),
    Case(
        "timm",
        f"{ACT}.LayerNormAct",
        "LA",
        torch_layer_norm(1e-5, **RELU),
        96,
        (96,),
        fused="layer_norm",
    ),
    Case(
        "timm",
        f"{ACT}.LayerNormAct2d",
        "LA",
        torch_layer_norm(1e-5, **RELU, axis="channel"),
        96,
        (96,),
        fused="layer_norm",
        **IMAGE,
    ),
    Case(
        "timm",
        f"{ACT}.LayerNormActFp32",
        "LA",
        torch_layer_norm(1e-5, **RELU),
        96,
        (96,),
        fused="layer_norm",
    ),
    Case(
        "timm, SiLU",
        f"{ACT}.RmsNormAct",
        "LA",
        cast_last(1e-6, **SILU),
        256,
        (256,),
        {"act_layer": nn.SiLU},
    ),
    Case(
        "timm, GELU",
        f"{ACT}.RmsNormActFp32",
        "LA",
        cast_last(1e-6, **GELU),
        256,
        (256,),
        {"act_layer": nn.GELU},
    ),
    Case(
        "timm, SiLU",
        f"{ACT}.RmsNormAct2d",
        "LA",
        cast_last(1e-6, axis="channel", post_activation="silu", **STEPWISE),
        96,
        (96,),
        {"act_layer": nn.SiLU},
        **IMAGE,
    ),
)
