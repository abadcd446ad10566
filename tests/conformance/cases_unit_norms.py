"""L2 norms of transformers and torch."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from conformance.adapters import Call, Draw, applied, divided_by
from conformance.case import UNMIXED, Case, Config
from conformance.shapes import hf

STEPWISE = {"statistics": {"precision": "io_stepwise", "root": "sqrt"}}
UNIT = {"variant": "l2_norm", "affine": {"weight": "none"}}

OWLVIT = Config("transformers.OwlViTConfig")


def owl_head(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """The class head up to its einsum, whose first operand are the normed rows."""
    theirs.get_submodule("dense0").returns = x
    for name in ("logit_shift", "logit_scale"):
        theirs.get_submodule(name).returns = x[..., :1]
    seen = []

    def einsum(equation: str, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen.append(rows)
        return x[..., :1]

    with mock.patch("torch.einsum", einsum):
        theirs(x, x, None)
    return Call(seen[0])


CASES: tuple[Case, ...] = (
    Case(
        "Dory",
        hf("dory", "DoryL2Norm"),
        "N1",
        {**UNIT, "eps": 1e-6},
        2560,
        (1e-6,),
        pairs=UNMIXED,
    ),
    Case(
        "Qwen3-Next",
        hf("qwen3_next", "l2norm"),
        "N1",
        "qwen3_next:l2_norm",
        128,
        pairs=UNMIXED,
    ),
    Case(
        "Qwen3.5",
        hf("qwen3_5", "l2norm"),
        "N1",
        "qwen3_next:l2_norm",
        128,
        pairs=UNMIXED,
    ),
    Case(
        "Kimi Linear",
        hf("kimi_linear", "l2norm"),
        "N1",
        "kimi_linear:l2_norm",
        128,
        pairs=UNMIXED,
    ),
    Case(
        "Swin V2, q and k",
        "torch.nn.functional.normalize",
        "N2",
        "swin_v2:qk_norm",
        32,
        call=applied(dim=-1),
        fused="vector_norm",
        pairs=UNMIXED,
    ),
    Case(
        "CLIP",
        hf("clip", "_get_vector_norm"),
        "N4",
        "clip:l2_norm",
        512,
        call=divided_by(),
        pairs=UNMIXED,
    ),
    Case(
        "AIMv2",
        hf("aimv2", "_get_vector_norm"),
        "N4",
        {**UNIT, **STEPWISE, "eps_placement": "none"},
        768,
        call=divided_by(),
        pairs=UNMIXED,
    ),
    Case(
        "SigLIP",
        "torch.Tensor.norm",
        "N4",
        "siglip:l2_norm",
        768,
        call=divided_by(p=2, dim=-1, keepdim=True),
        fused="vector_norm",
        pairs=UNMIXED,
    ),
    Case(
        "OWL-ViT",
        hf("owlvit", "OwlViTClassPredictionHead"),
        "N5",
        {
            **UNIT,
            "eps": 1e-6,
            "eps_placement": "outside_sqrt",
            "statistics": {"precision": "io", "root": "sqrt"},
        },
        512,
        (OWLVIT,),
        stubs=("dense0", "logit_shift", "logit_scale"),
        call=owl_head,
        fused="vector_norm",
        pairs=UNMIXED,
    ),
    Case(
        "Inkling 2",
        hf("inkling2", "Inkling2L2Clip"),
        "NC",
        "inkling2:l2_clip",
        128,
        (22.627416997969522,),
        fused="vector_norm",
        pairs=UNMIXED,
    ),
    Case(
        "Inkling 2",
        hf("inkling2", "Inkling2ScaledL2Clip"),
        "NC",
        "inkling2:scaled_l2_clip",
        128,
        (8, 128, 22.627416997969522),
        state={"scale": "weight"},
        lead=(2, 3, 8),
        heads=8,
        fused="vector_norm",
    ),
)
