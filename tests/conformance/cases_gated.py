"""Norms of transformers with a gate."""

from __future__ import annotations

from typing import Any

from conformance.adapters import gated
from conformance.case import Case
from conformance.shapes import cast_before, cast_last, hf

AFTER = {"gate": {"position": "after"}}
BEFORE = {"gate": {"position": "before"}}
SIGMOID = {"gate": {"position": "after", "activation": "sigmoid"}}
THREE_ROUNDINGS = {"rounding": {"normalized": "io"}, **AFTER}


def case(
    model: str, path: str, group: str, spec: Any, size: int, eps: float, **more: Any
) -> Case:
    """A class made of a size, an eps and more, and called with a gate."""
    source = hf(*path.split("."))
    kwargs = {"eps": eps, **more}
    return Case(model, source, group, spec, size, (size,), kwargs, call=gated)


CASES: tuple[Case, ...] = (
    case(
        "Mamba 2",
        "mamba2.MambaRMSNormGated",
        "RG1",
        "mamba2:gated_rms_norm",
        8192,
        1e-5,
        group_size=1024,
    ),
    case(
        "Nemotron-H",
        "nemotron_h.NemotronHRMSNormGated",
        "RG1",
        "nemotron_h:gated_rms_norm",
        8192,
        1e-5,
        group_size=1024,
    ),
    case(
        "Zamba2",
        "zamba2.Zamba2RMSNormGated",
        "RG1",
        cast_before(1e-5, **BEFORE, group_size=5120),
        5120,
        1e-5,
        group_size=5120,
    ),
    case(
        "Granite 4",
        "granitemoehybrid.GraniteMoeHybridRMSNormGated",
        "RG1",
        cast_before(1e-6, **BEFORE),
        8192,
        1e-6,
        group_size=8192,
    ),
    case(
        "Bamba",
        "bamba.BambaRMSNormGated",
        "RG1",
        cast_before(1e-5, **BEFORE),
        8192,
        1e-5,
        group_size=8192,
    ),
    case(
        "Falcon-H1",
        "falcon_h1.FalconH1RMSNormGated",
        "RG2",
        "falcon_h1:gated_rms_norm",
        1024,
        1e-5,
    ),
    case(
        "Falcon-H1, gate first",
        "falcon_h1.FalconH1RMSNormGated",
        "RG2",
        "falcon_h1:pre_gated_rms_norm",
        1024,
        1e-5,
        norm_before_gate=False,
    ),
    case(
        "Falcon-H1, two groups",
        "falcon_h1.FalconH1RMSNormGated",
        "RG2",
        cast_last(1e-5, **AFTER, group_size=512),
        1024,
        1e-5,
        n_groups=2,
    ),
    case(
        "Qwen3-Next",
        "qwen3_next.Qwen3NextRMSNormGated",
        "RG3",
        "qwen3_next:gated_rms_norm",
        128,
        1e-6,
    ),
    case(
        "Qwen3.5",
        "qwen3_5.Qwen3_5RMSNormGated",
        "RG3",
        "qwen3_next:gated_rms_norm",
        128,
        1e-6,
    ),
    case(
        "OLMo Hybrid",
        "olmo_hybrid.OlmoHybridRMSNormGated",
        "RG3",
        cast_last(1e-6, **THREE_ROUNDINGS),
        192,
        1e-6,
    ),
    case(
        "Qwen4",
        "qwen4_exp.Qwen4ExpTextRMSNormGated",
        "RG3",
        cast_last(1e-6, **THREE_ROUNDINGS),
        128,
        1e-6,
    ),
    case(
        "Kimi Linear",
        "kimi_linear.KimiLinearRMSNormGated",
        "RG4",
        "kimi_linear:gated_rms_norm",
        128,
        1e-5,
    ),
    case(
        "GLM-5",
        "glm5_next.Glm5NextTextRMSNormGated",
        "RG4",
        "kimi_linear:gated_rms_norm",
        128,
        1e-5,
    ),
    case(
        "Bailing Hybrid",
        "bailing_hybrid.BailingHybridRMSNormGated",
        "RG4",
        cast_last(1e-6, **SIGMOID),
        128,
        1e-6,
    ),
    case(
        "Lara Mini",
        "lara_mini.LaraMiniRMSNormGated",
        "RG4",
        cast_last(1e-6, **AFTER),
        128,
        1e-6,
    ),
)
