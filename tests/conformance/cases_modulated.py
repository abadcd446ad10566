"""AdaLN: norms followed by a scale and a shift that a layer makes of an embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.adapters import Call, Draw, Stub, Watch, chunked
from conformance.case import UNMIXED, Case, Config
from conformance.shapes import cast_last, cast_to_weight, hf, modulated

NORMALIZATION = "diffusers.models.normalization"
TRANSFORMERS = "diffusers.models.transformers"

ZERO = ("shift", "scale", None, None, None, None)
X35 = (*ZERO, "shift2", "scale2", None)
WAVTOKENIZER = Config("transformers.WavTokenizerConfig")


def zero(model: str, name: str, spec: Any, size: int, chunks: tuple, **more) -> Case:
    """A class of diffusers whose linear layer makes chunks, the normed rows first."""
    return Case(
        model,
        f"{NORMALIZATION}.{name}",
        "A1",
        spec,
        size,
        **{
            "args": (size,),
            "stubs": ("linear",),
            "call": chunked(*chunks, returned=(0,)),
            "state": "norm",
            "fused": "layer_norm",
            **more,
        },
    )


def context_too(chunks: tuple[str | None, ...], returned: int = 0) -> Callable:
    """Classes that norm a text stream beside x; the text's chunks are left alone."""

    def call(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
        made = draw.conditioning(x.shape[0], len(chunks) * x.shape[-1])
        theirs.get_submodule("linear").returns = made
        parts = zip(chunks, made.chunk(len(chunks), dim=1), strict=True)
        operands = {name: part for name, part in parts if name}
        return Call(theirs(x, x, made)[returned], operands)

    return call


def sana(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """Scale and shift are the sum of a table and an embedding."""
    table = draw.conditioning(2, x.shape[-1])
    embedding = draw.conditioning(x.shape[0], x.shape[-1])
    shift, scale = (table[None] + embedding[:, None]).chunk(2, dim=1)
    operands = {"scale": scale.squeeze(1), "shift": shift.squeeze(1)}
    return Call(theirs(x, embedding, table), operands)


def wan(tokens: bool) -> Callable[..., Call]:
    """A Wan block up to its self attention, for one row or for a row a token."""

    def call(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
        shape = (*x.shape[: 2 if tokens else 1], 6, x.shape[-1])
        embedding = draw.conditioning(*shape)
        made = theirs.scale_shift_table + embedding.float()
        shift, scale = made[..., 0, :], made[..., 1, :]
        for stub in theirs.modules():
            if isinstance(stub, Stub):
                stub.returns = x
        watch = Watch(theirs.attn1)
        theirs(x, x, embedding, None)
        return Call(watch.seen, {"scale": scale, "shift": shift})

    return call


def wavtokenizer(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """Scale and shift are rows of two embeddings, one for each sample."""
    index = torch.arange(x.shape[0])[:, None]
    operands = {"scale": theirs.scale(index)[:, 0], "shift": theirs.shift(index)[:, 0]}
    return Call(theirs(x, index), operands)


def esmfold(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """A sigmoid of one projection, and another, for each row."""
    gate, shift = draw.conditioning(*x.shape), draw.conditioning(*x.shape)
    theirs.gate_proj.returns, theirs.shift_proj.returns = gate, shift
    return Call(theirs(x, x), {"scale": gate, "shift": shift})


def lumina_block(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """The residual addition of a Lumina block: tanh of a gate times the norm."""
    residual = draw.like_x()
    gate = draw.conditioning(x.shape[0], x.shape[-1])
    for stub in theirs.modules():
        if isinstance(stub, Stub):
            stub.returns = x
    theirs.norm1.returns = (residual, gate, gate, gate)
    watch = Watch(theirs.ffn_norm1)
    theirs(residual, None, None, gate)
    return Call(watch.seen, {"residual": residual, "branch_scale": gate})


def _wan_block(model: str, entry: str, tokens: bool) -> Case:
    return Case(
        model,
        f"{TRANSFORMERS}.transformer_wan.WanTransformerBlock",
        "A1",
        f"wan:{entry}",
        1536,
        (1536, 64, 12),
        {"eps": 1e-6},
        stubs=("attn1", "attn2", "ffn"),
        call=wan(tokens),
        state="norm1",
        fused="layer_norm",
    )


NATIVE = (
    zero("FLUX.1", "AdaLayerNormZero", "flux:modulated_layer_norm", 3072, ZERO),
    zero(
        "FLUX.1, single blocks",
        "AdaLayerNormZeroSingle",
        "flux:modulated_layer_norm",
        3072,
        ("shift", "scale", None),
    ),
    zero(
        "FLUX.1, last norm",
        "AdaLayerNormContinuous",
        "flux:modulated_layer_norm",
        3072,
        ("scale", "shift"),
        args=(3072, 3072),
        kwargs={"elementwise_affine": False, "eps": 1e-6},
        call=chunked("scale", "shift", arguments="conditioning_embedding"),
        pairs=UNMIXED,
    ),
    zero("SD3", "AdaLayerNormZero", "sd3:modulated_layer_norm", 1536, ZERO),
    zero(
        "SD3.5",
        "SD35AdaLayerNormZeroX",
        "sd3:double_layer_norm",
        1536,
        X35,
        call=chunked(*X35, returned=(0, 5)),
        fused="layer_norm",
    ),
    zero(
        "AuraFlow",
        "AdaLayerNormZero",
        modulated(1e-5),
        3072,
        ZERO,
        kwargs={"norm_type": "fp32_layer_norm"},
    ),
    zero(
        "OmniGen",
        "AdaLayerNorm",
        modulated(1e-6),
        3072,
        ("shift", "scale"),
        args=(3072,),
        kwargs={"norm_eps": 1e-6, "chunk_dim": 1},
        call=chunked("shift", "scale", arguments="temb"),
    ),
    zero(
        "CogVideoX",
        "CogVideoXLayerNormZero",
        "cogvideox:modulated_layer_norm",
        1920,
        ZERO,
        args=(512, 1920),
        call=context_too(ZERO),
        fused="layer_norm",
    ),
    zero(
        "CogView3-Plus",
        "CogView3PlusAdaLayerNormZeroTextImage",
        modulated(1e-5),
        2560,
        (*ZERO, *[None] * 6),
        args=(512, 2560),
        call=context_too((*ZERO, *[None] * 6)),
        state="norm_x",
    ),
    Case(
        "CogView4",
        f"{TRANSFORMERS}.transformer_cogview4.CogView4AdaLayerNormZero",
        "A1",
        modulated(1e-5),
        2560,
        (512, 2560),
        stubs=("linear",),
        call=context_too(("shift", None, "scale", *[None] * 9)),
        state="norm",
        fused="layer_norm",
    ),
    Case(
        "Cosmos",
        f"{TRANSFORMERS}.transformer_cosmos.CosmosAdaLayerNormZero",
        "A1",
        modulated(1e-6),
        4096,
        (4096, 256),
        stubs=("linear_1", "linear_2"),
        call=chunked(
            "shift",
            "scale",
            None,
            linear="linear_2",
            dim=-1,
            arguments="embedded_timestep",
            returned=(0,),
        ),
        state="norm",
        fused="layer_norm",
    ),
    Case(
        "FLUX.3",
        f"{TRANSFORMERS}.transformer_flux3.Flux3AdaLayerNorm",
        "A1",
        modulated(1e-6, modulation={"operands": "scale_shift", "per": "row"}),
        1024,
        (1024,),
        stubs=("linear",),
        call=chunked("scale", "shift", dim=-1, rows="row", arguments="temb"),
        state="norm",
        fused="layer_norm",
    ),
    Case(
        "HunyuanDiT",
        f"{TRANSFORMERS}.hunyuan_transformer_2d.AdaLayerNormShift",
        "A1",
        {
            "variant": "layer_norm",
            "eps": 1e-6,
            "affine": {"bias": True},
            "rounding": {"affine": "io"},
            "modulation": {"operands": "shift"},
            "out_dtype": "promote",
        },
        1408,
        (1408,),
        stubs=("linear",),
        call=chunked("shift"),
        state="norm",
        fused="layer_norm",
    ),
    Case(
        "Sana",
        f"{TRANSFORMERS}.sana_transformer.SanaModulatedNorm",
        "A1",
        modulated(1e-6),
        2240,
        (2240,),
        call=sana,
        fused="layer_norm",
    ),
    Case(
        "WavTokenizer",
        hf("wavtokenizer", "WavTokenizerAdaLayerNorm"),
        "A1",
        modulated(1e-6, modulation={"operands": "scale_shift", "factor": "plain"}),
        768,
        (WAVTOKENIZER,),
        call=wavtokenizer,
        state=lambda theirs: {},
        fused="layer_norm",
    ),
    Case(
        "ESMFold 2",
        hf("esmfold2", "EsmFold2AdaptiveLayerNorm"),
        "A1",
        {
            "variant": "layer_norm",
            "eps": 1e-5,
            "affine": {"weight": "none"},
            "modulation": {
                "operands": "scale_shift",
                "per": "row",
                "factor": "sigmoid",
            },
        },
        256,
        (256,),
        stubs=("cond_norm", "gate_proj", "shift_proj"),
        call=esmfold,
        state=lambda theirs: {},
        fused="layer_norm",
    ),
)

RMS = (
    zero(
        "Lumina 2",
        "LuminaRMSNormZero",
        "lumina2:modulated_rms_norm",
        2304,
        ("scale", None, None, None),
        kwargs={"norm_eps": 1e-5, "norm_elementwise_affine": True},
        fused=None,
    ),
    Case(
        "Lumina 2, residual",
        f"{TRANSFORMERS}.transformer_lumina2.Lumina2TransformerBlock",
        "A1",
        "lumina2:rms_norm_add",
        2304,
        (2304, 24, 8, 256, 1.0, 1e-5),
        stubs=("attn", "feed_forward", "norm1"),
        call=lumina_block,
        state="norm2",
        pairs=UNMIXED,
    ),
    Case(
        "Mochi",
        f"{TRANSFORMERS}.transformer_mochi.MochiRMSNormZero",
        "A1",
        "mochi:modulated_rms_norm",
        3072,
        (3072, 4 * 3072),
        {"eps": 1e-6},
        stubs=("linear",),
        call=chunked("scale", None, None, None, returned=(0,)),
        state="norm",
    ),
    Case(
        "Mochi, last norm",
        f"{TRANSFORMERS}.transformer_mochi.MochiLayerNormContinuous",
        "A1",
        cast_last(
            1e-6,
            affine={"weight": "none"},
            modulation={"operands": "scale", "precision": "float32"},
        ),
        3072,
        (3072, 256),
        {"eps": 1e-6},
        stubs=("linear_1",),
        call=chunked("scale", linear="linear_1", arguments="conditioning_embedding"),
        state="norm",
        pairs=UNMIXED,
    ),
    zero(
        "Lumina, RMS",
        "LuminaLayerNormContinuous",
        cast_to_weight(1e-6, modulation={"operands": "scale"}),
        2304,
        ("scale",),
        args=(2304, 256),
        kwargs={"eps": 1e-6, "norm_type": "rms_norm"},
        stubs=("linear_1",),
        call=chunked("scale", linear="linear_1", arguments="conditioning_embedding"),
        fused=None,
        pairs=UNMIXED,
    ),
)

WAN = (
    _wan_block("Wan 2.1", "modulated_layer_norm", tokens=False),
    _wan_block("Wan 2.2 5B", "token_layer_norm", tokens=True),
)

CASES: tuple[Case, ...] = (*NATIVE, *RMS, *WAN)
