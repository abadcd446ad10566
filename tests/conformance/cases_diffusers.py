"""Norms of diffusers without modulation."""

from __future__ import annotations

from conformance.adapters import plain
from conformance.case import UNMIXED, Case
from conformance.shapes import cast_last, cast_to_weight, torch_layer_norm

NORMALIZATION = "diffusers.models.normalization"
TRANSFORMERS = "diffusers.models.transformers"
VAES = "diffusers.models.autoencoders"
PIXEL = {
    "variant": "rms_norm",
    "eps": 1e-8,
    "axis": "channel",
    "affine": {"weight": "none"},
    "statistics": {"precision": "io_stepwise", "root": "sqrt"},
}
CHANNEL_NORM = {
    "variant": "l2_norm",
    "eps": 1e-12,
    "eps_placement": "clamp_norm",
    "axis": "channel",
    "statistics": {"root": "sqrt"},
    "rounding": {"normalized": "io"},
    "scale": "sqrt_hidden_size",
    "out_dtype": "promote",
}


def channel_norm(model: str, source: str, spec: object, size: int, **kwargs) -> Case:
    """A VAE's norm over dimension 1 of [N, C, T, H, W]."""
    return Case(
        model,
        source,
        "N3",
        spec,
        size,
        (size,),
        kwargs,
        state={"gamma": "weight", **({"bias": "bias"} if kwargs.get("bias") else {})},
        lead=(2,),
        after=(2, 2, 3),
        fused="vector_norm",
    )


CASES: tuple[Case, ...] = (
    Case(
        "Qwen-Image, text",
        f"{NORMALIZATION}.RMSNorm",
        "R4",
        cast_to_weight(1e-6),
        3584,
        (3584,),
        {"eps": 1e-6},
    ),
    Case(
        "diffusers, with bias",
        f"{NORMALIZATION}.RMSNorm",
        "R4",
        cast_to_weight(1e-6, affine={"bias": True}),
        640,
        (640,),
        {"eps": 1e-6, "bias": True},
    ),
    Case(
        "LTX-Video",
        f"{NORMALIZATION}.RMSNorm",
        "R5",
        cast_last(1e-6, affine={"weight": "none"}),
        2048,
        (2048,),
        {"eps": 1e-6, "elementwise_affine": False},
        pairs=UNMIXED,
    ),
    Case(
        "T5-FiLM",
        f"{TRANSFORMERS}.t5_film_transformer.T5LayerNorm",
        "R4",
        "t5:rms_norm",
        768,
        (768,),
        {"eps": 1e-6},
    ),
    Case(
        "Mochi, q and k",
        f"{NORMALIZATION}.MochiRMSNorm",
        "R2",
        "mochi:qk_norm",
        128,
        (128,),
        {"eps": 1e-5},
    ),
    Case(
        "Kolors",
        "diffusers.pipelines.kolors.text_encoder.RMSNorm",
        "R2",
        cast_last(1e-5),
        4096,
        (4096,),
        {"eps": 1e-5},
    ),
    Case(
        "Stable Audio 3",
        f"{TRANSFORMERS}.transformer_stable_audio3.StableAudio3RMSNorm",
        "R2",
        cast_last(1e-6),
        1536,
        (1536,),
        state={"gamma": "weight"},
    ),
    Case(
        "Cosmos 3",
        f"{TRANSFORMERS}.transformer_cosmos3.Cosmos3NemotronRMSNorm",
        "R2",
        cast_last(1e-5),
        4096,
        (4096,),
        {"eps": 1e-5},
    ),
    Case(
        "Qwen-Image 2.1",
        f"{TRANSFORMERS}.transformer_qwenimage21.QwenImage21ZeroCenterRMSNorm",
        "R3",
        cast_last(1e-5, affine={"weight_offset": 1}),
        3072,
        (3072,),
    ),
    Case(
        "Krea 2",
        f"{TRANSFORMERS}.transformer_krea2.Krea2RMSNorm",
        "R3b",
        cast_last(1e-5, affine={"weight_offset": 1, "offset_precision": "param"}),
        3072,
        (3072,),
    ),
    Case(
        "Wan 2.1, cross attention",
        f"{NORMALIZATION}.FP32LayerNorm",
        "L11",
        "wan:layer_norm",
        5120,
        (5120,),
        {"eps": 1e-6},
        fused="layer_norm",
    ),
    Case(
        "Wan 2.1, without weight",
        f"{NORMALIZATION}.FP32LayerNorm",
        "L3",
        torch_layer_norm(1e-6, affine={"weight": "none"}),
        1536,
        (1536,),
        {"eps": 1e-6, "elementwise_affine": False},
        fused="layer_norm",
        pairs=UNMIXED,
    ),
    Case(
        "diffusers",
        f"{NORMALIZATION}.LpNorm",
        "N2",
        {
            "variant": "l2_norm",
            "eps": 1e-12,
            "eps_placement": "clamp_norm",
            "affine": {"weight": "none"},
            "statistics": {"precision": "io", "root": "sqrt"},
        },
        64,
        fused="vector_norm",
        pairs=UNMIXED,
    ),
    channel_norm(
        "Wan 2.1, VAE",
        f"{VAES}.autoencoder_kl_wan.WanRMS_norm",
        "wan_vae:channel_norm",
        96,
        images=False,
    ),
    channel_norm(
        "Wan VAE with bias",
        f"{VAES}.autoencoder_kl_wan.WanRMS_norm",
        {**CHANNEL_NORM, "affine": {"bias": True}},
        192,
        images=False,
        bias=True,
    ),
    channel_norm(
        "Qwen-Image, VAE",
        f"{VAES}.autoencoder_kl_qwenimage.QwenImageRMS_norm",
        "wan_vae:channel_norm",
        384,
        images=False,
    ),
    channel_norm(
        "HunyuanVideo 1.5, VAE",
        f"{VAES}.autoencoder_kl_hunyuanvideo15.HunyuanVideo15RMS_norm",
        CHANNEL_NORM,
        128,
        images=False,
    ),
    channel_norm(
        "Kandinsky 6, VAE",
        f"{VAES}.autoencoder_kandinsky6_sr.Kandinsky6VAERMSNorm",
        CHANNEL_NORM,
        64,
    ),
    Case(
        "LTX-2, audio VAE",
        f"{VAES}.autoencoder_kl_ltx2_audio.LTX2AudioPixelNorm",
        "R6",
        PIXEL,
        128,
        lead=(2,),
        after=(3, 4),
        call=plain,
        pairs=UNMIXED,
    ),
    Case(
        "LTX-2, VAE",
        f"{VAES}.autoencoder_kl_ltx2.PerChannelRMSNorm",
        "R6",
        PIXEL,
        256,
        lead=(2,),
        after=(2, 2, 3),
        pairs=UNMIXED,
    ),
)
