"""Layer norms of transformers, and torch's own in its models."""

from __future__ import annotations

from typing import Any

import torch

from conformance.adapters import heads_apart, heads_first
from conformance.case import UNMIXED, Case
from conformance.shapes import HF, hf, torch_layer_norm


def torchs(model: str, spec: Any, size: int, eps: float, **kwargs: Any) -> Case:
    """torch.nn.LayerNorm as a model makes it."""
    group = "L1" if kwargs.get("bias", True) else "L2"
    group = group if kwargs.get("elementwise_affine", True) else "L3"
    return Case(
        model,
        "torch.nn.LayerNorm",
        group,
        spec,
        size,
        (size,),
        {"eps": eps, **kwargs},
        fused="layer_norm",
    )


ONE_PLUS = {"weight_offset": 1, "offset_precision": "param"}

TORCH = (
    torchs("BERT", "bert:layer_norm", 768, 1e-12),
    torchs("GPT-2", "gpt2:layer_norm", 1600, 1e-5),
    torchs("GPT-NeoX", "gpt_neox:layer_norm", 6144, 1e-5),
    torchs("Phi-2", "phi:layer_norm", 2560, 1e-5),
    torchs("ViT", "vit:layer_norm", 1280, 1e-12),
    torchs("Whisper", "whisper:layer_norm", 384, 1e-5),
    torchs("SigLIP", "siglip:layer_norm", 1152, 1e-6),
    torchs("CLIP", "clip:layer_norm", 768, 1e-5),
    torchs("DINOv3", "dinov3:layer_norm", 1280, 1e-5),
    torchs("StableLM", "stablelm:layer_norm", 2560, 1e-5),
    torchs("Falcon-7B", torch_layer_norm(1e-5), 4544, 1e-5),
    torchs("ModernBERT", torch_layer_norm(1e-5, affine={}), 768, 1e-5, bias=False),
    torchs("DBRX", torch_layer_norm(1e-5, affine={}), 6144, 1e-5, bias=False),
    Case(
        "any",
        "torch.nn.LayerNorm",
        "L1",
        "dynamic:layer_norm",
        1000,
        (1000,),
        fused="layer_norm",
        eps=1e-5,
    ),
)

VARIANTS = (
    Case(
        "OLMo",
        hf("olmo", "OlmoLayerNorm"),
        "L3",
        "olmo:layer_norm",
        2048,
        (2048,),
        fused="layer_norm",
        pairs=UNMIXED,
    ),
    Case(
        "Command-R",
        hf("cohere", "CohereLayerNorm"),
        "L4",
        "cohere:layer_norm",
        8192,
        (8192,),
        {"eps": 1e-5},
    ),
    Case(
        "Command-R, q and k",
        hf("cohere", "CohereLayerNorm"),
        "L4",
        "cohere:qk_norm",
        128,
        ((64, 128),),
        {"eps": 1e-5},
        lead=(2, 2, 64),
        heads=64,
    ),
    Case(
        "Command-A",
        hf("cohere2", "Cohere2LayerNorm"),
        "L4",
        "cohere:layer_norm",
        8192,
        (8192,),
        {"eps": 1e-5},
    ),
    Case(
        "DeBERTa",
        hf("deberta", "DebertaLayerNorm"),
        "L5",
        "deberta:layer_norm",
        768,
        (768,),
        {"eps": 1e-7},
    ),
    Case(
        "Nemotron-4",
        hf("nemotron", "NemotronLayerNorm1P"),
        "L6",
        "nemotron:layer_norm",
        6144,
        (6144,),
        {"eps": 1e-5},
        fused="layer_norm",
    ),
    Case(
        "VideoPrism",
        hf("videoprism", "VideoPrismLayerNorm"),
        "L6",
        torch_layer_norm(1e-6, affine=ONE_PLUS | {"bias": True}),
        768,
        (768,),
        {"eps": 1e-6},
        fused="layer_norm",
    ),
    Case(
        "Moonshine Streaming",
        hf("moonshine_streaming", "MoonshineStreamingLayerNorm"),
        "L6b",
        torch_layer_norm(
            1e-5, affine=ONE_PLUS, rounding={"normalized": "io"}, out_dtype="promote"
        ),
        320,
        (320,),
        state={"gamma": "weight"},
        fused="layer_norm",
    ),
    Case(
        "Chameleon, q and k",
        hf("chameleon", "ChameleonLayerNorm"),
        "L7",
        "chameleon:qk_norm",
        128,
        ((32, 128),),
        lead=(2, 2, 32),
        heads=32,
        fused="layer_norm",
    ),
    Case(
        "StableLM, q and k",
        hf("stablelm", "StableLmLayerNormPerHead"),
        "LH",
        "stablelm:qk_norm",
        80,
        (80, 32),
        {"eps": 1e-5},
        call=heads_first,
        state=lambda theirs: {
            "weight": torch.stack([norm.weight.detach() for norm in theirs.norms])
        },
        lead=(2, 2, 32),
        heads=32,
        fused="layer_norm",
    ),
    Case(
        "xLSTM 7B",
        hf("xlstm", "xLSTMMultiHeadLayerNorm"),
        "LG",
        "xlstm:multihead_norm",
        4096,
        (8, 512),
        {"eps": 1e-6},
        call=heads_apart(8),
        fused="var",
    ),
    Case(
        "ESMFold",
        f"{HF}.esm.modeling_esmfold.EsmFoldLayerNorm",
        "L1",
        torch_layer_norm(1e-5),
        128,
        (128,),
        fused="layer_norm",
        pairs=UNMIXED,
    ),
    Case(
        "ESM C",
        hf("esmc", "EsmcLayerNorm"),
        "L1",
        torch_layer_norm(1e-5),
        960,
        (960,),
        fused="layer_norm",
    ),
    Case(
        "ESMFold 2",
        hf("esmfold2", "EsmFold2LayerNorm"),
        "L11",
        torch_layer_norm(1e-5),
        256,
        (256,),
        fused="layer_norm",
        pairs=(("float32", "float32"), ("bfloat16", "float32")),
    ),
)

CHANNELS = (
    Case(
        "ConvNeXt",
        hf("convnext", "ConvNextLayerNorm"),
        "L10",
        "convnext:channel_norm",
        96,
        (96,),
        {"eps": 1e-6, "data_format": "channels_first"},
        lead=(2,),
        after=(3, 4),
        fused="layer_norm",
    ),
    Case(
        "ConvNeXt",
        hf("convnext", "ConvNextLayerNorm"),
        "L1",
        "convnext:layer_norm",
        384,
        (384,),
        {"eps": 1e-6},
        fused="layer_norm",
    ),
    Case(
        "SAM",
        hf("sam", "SamLayerNorm"),
        "L10",
        torch_layer_norm(1e-6, axis="channel"),
        256,
        (256,),
        {"eps": 1e-6, "data_format": "channels_first"},
        lead=(2,),
        after=(3, 4),
        fused="layer_norm",
    ),
    Case(
        "ViTDet",
        hf("vitdet", "VitDetLayerNorm"),
        "L9",
        torch_layer_norm(
            1e-6,
            axis="channel",
            statistics={"precision": "io_stepwise", "root": "sqrt"},
            out_dtype="promote",
        ),
        256,
        (256,),
        lead=(2,),
        after=(3, 4),
    ),
)

IN_THE_DTYPE_OF_X = (
    Case(
        "Moonshine Streaming",
        hf("moonshine_streaming", "MoonshineStreamingFrameCMVN"),
        "L9",
        torch_layer_norm(
            1e-6,
            affine={"weight": "none"},
            statistics={"precision": "io_stepwise", "root": "sqrt"},
        ),
        80,
        pairs=UNMIXED,
    ),
    Case(
        "Pocket TTS, flow head",
        hf("pocket_tts", "PocketTTSFlowLayerNorm"),
        "L9",
        "pocket_tts:layer_norm",
        512,
        (512,),
        {"eps": 1e-6},
        fused="var",
    ),
    Case(
        "Pocket TTS, time embedding",
        hf("pocket_tts", "PocketTTSTimestepNorm"),
        "L8",
        "pocket_tts:timestep_norm",
        512,
        (512,),
        {"eps": 1e-5},
        fused="var",
    ),
)

CASES: tuple[Case, ...] = (
    *TORCH,
    *VARIANTS,
    *CHANNELS,
    *IN_THE_DTYPE_OF_X,
)
