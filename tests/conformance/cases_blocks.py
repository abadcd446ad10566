"""Norms in real blocks of transformers, fused with the residual addition beside them.

The block runs; its attention, MLP or projections are stubs that return drawn rows.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.adapters import in_block
from conformance.case import UNMIXED, Case, Config
from conformance.shapes import cast_before, hf


def config(name: str, **values: Any) -> Config:
    """A configuration of transformers, its MLP narrow: it is replaced anyway."""
    return Config(f"transformers.{name}Config", {"intermediate_size": 64, **values})


BERT = config("Bert", hidden_dropout_prob=0.0)
DEBERTA = config("Deberta", hidden_dropout_prob=0.0)
WHISPER = Config("transformers.WhisperConfig", {"d_model": 384, "encoder_ffn_dim": 64})
SWIN_V2 = Config("transformers.Swinv2Config")
OLMO2 = config("Olmo2", rms_norm_eps=1e-6)
LLAMA = config("Llama", rms_norm_eps=1e-5)
GEMMA3 = config("Gemma3Text", hidden_size=1152)
GRANITE = config("Granite", rms_norm_eps=1e-5, residual_multiplier=0.22)
GPT2 = Config("transformers.GPT2Config", {"n_inner": 64})
T5 = Config("transformers.T5Config", {"d_ff": 64})
MINIMAX = config(
    "MiniMax",
    layer_types=["full_attention"],
    num_hidden_layers=1,
    num_local_experts=1,
    full_attn_alpha_factor=3.5565588200778455,
    full_attn_beta_factor=0.75,
)


def pair(x: torch.Tensor) -> tuple[torch.Tensor, None]:
    """What an attention returns: its output, and no weights."""
    return x, None


def unmasked(block: Any, residual: torch.Tensor) -> None:
    block(residual, None)


def pre_add(
    model: str,
    block: str,
    spec: Any,
    size: int,
    args: tuple,
    *,
    group: str = "R1",
    norm: str = "post_attention_layernorm",
    branch: str = "self_attn",
    stubs: tuple[str, ...] = ("self_attn", "mlp"),
    **more: Any,
) -> Case:
    """h = residual + branch; y = norm(h): both are compared."""
    run = more.pop("run", lambda layer, residual: layer(residual))
    wrap, source = more.pop("wrap", pair), more.pop("source", None)
    return Case(
        model,
        hf(*block.split(".")),
        group,
        spec,
        size,
        args,
        stubs=stubs,
        call=in_block(branch, norm=norm, source=source, wrap=wrap, run=run),
        **{"state": norm, "pairs": UNMIXED, **more},
    )


def post_norm(model: str, block: str, spec: Any, made: Config, **more: Any) -> Case:
    """BERT's way: y = norm(dense(x) + residual)."""
    return pre_add(
        model,
        block,
        spec,
        768,
        (made,),
        norm="LayerNorm",
        branch="dense",
        stubs=("dense",),
        wrap=lambda x: x,
        run=lambda layer, residual: layer(residual, residual),
        **more,
    )


#: model, layer, group, spec, size, configuration
DECODERS = (
    ("Llama 3", "llama.LlamaDecoderLayer", "R1", "llama:add_rms_norm", 4096, LLAMA),
    (
        "Mistral 7B",
        "mistral.MistralDecoderLayer",
        "R1",
        "mistral:add_rms_norm",
        4096,
        config("Mistral", rms_norm_eps=1e-5),
    ),
    (
        "Qwen2.5",
        "qwen2.Qwen2DecoderLayer",
        "R1",
        "qwen2:add_rms_norm",
        896,
        config("Qwen2", hidden_size=896),
    ),
    (
        "Qwen3",
        "qwen3.Qwen3DecoderLayer",
        "R1",
        "qwen3:add_rms_norm",
        1024,
        config("Qwen3", hidden_size=1024),
    ),
    (
        "DeepSeek-V3",
        "deepseek_v3.DeepseekV3DecoderLayer",
        "R1",
        "deepseek_v3:add_rms_norm",
        7168,
        config("DeepseekV3"),
    ),
    (
        "Granite 3",
        "granite.GraniteDecoderLayer",
        "R1",
        "granite:add_rms_norm",
        4096,
        GRANITE,
    ),
    (
        "gpt-oss",
        "gpt_oss.GptOssDecoderLayer",
        "R2",
        "gpt_oss:add_rms_norm",
        2880,
        config("GptOss", num_local_experts=1),
    ),
    (
        "Gemma",
        "gemma.GemmaDecoderLayer",
        "R3",
        "gemma:add_rms_norm",
        3072,
        config("Gemma", hidden_size=3072),
    ),
)

PRE_ADD = (
    *(
        pre_add(model, block, spec, size, (made, 0), group=group)
        for model, block, group, spec, size, made in DECODERS
    ),
    pre_add(
        "OLMo",
        "olmo.OlmoDecoderLayer",
        "olmo:add_layer_norm",
        4096,
        (config("Olmo"), 0),
        group="L3",
        fused="layer_norm",
    ),
    pre_add(
        "T5",
        "t5.T5Block",
        "t5:add_rms_norm",
        512,
        (T5,),
        group="R4",
        norm="layer.1.layer_norm",
        branch="layer.0.SelfAttention",
        stubs=("layer.0.SelfAttention", "layer.1.DenseReluDense"),
        wrap=lambda x: (x, None, None),
    ),
    pre_add(
        "GPT-2",
        "gpt2.GPT2Block",
        "gpt2:add_layer_norm",
        768,
        (GPT2, 0),
        group="L1",
        norm="ln_2",
        branch="attn",
        stubs=("attn", "mlp"),
        fused="layer_norm",
    ),
    pre_add(
        "ViT",
        "vit.ViTLayer",
        "vit:add_layer_norm",
        768,
        (config("ViT", hidden_dropout_prob=0.0),),
        group="L1",
        norm="layernorm_after",
        branch="attention",
        stubs=("attention", "mlp"),
        fused="layer_norm",
    ),
    pre_add(
        "MiniMax-Text-01",
        "minimax.MiniMaxDecoderLayer",
        cast_before(
            1e-5,
            residual="pre_add",
            residual_scale=3.5565588200778455,
            branch_scale={"constant": 0.75},
        ),
        4096,
        (MINIMAX, 0),
        stubs=("input_layernorm", "self_attn", "mlp"),
        source="input_layernorm",
    ),
    pre_add(
        "Whisper",
        "whisper.WhisperEncoderLayer",
        "whisper:add_layer_norm",
        384,
        (WHISPER,),
        group="L1",
        norm="final_layer_norm",
        stubs=("self_attn", "fc1", "fc2"),
        run=unmasked,
        fused="layer_norm",
    ),
    pre_add(
        "SigLIP",
        "siglip.SiglipEncoderLayer",
        "siglip:add_layer_norm",
        768,
        (config("SiglipVision"),),
        group="L1",
        norm="layer_norm2",
        run=unmasked,
        fused="layer_norm",
    ),
    pre_add(
        "DINOv3",
        "dinov3_vit.DINOv3ViTLayer",
        "dinov3:add_layer_norm",
        384,
        (config("DINOv3ViT"),),
        group="L1",
        norm="norm2",
        branch="attention",
        stubs=("attention", "mlp"),
        state={
            "norm2.weight": "weight",
            "norm2.bias": "bias",
            "layer_scale1.lambda1": "branch_scale",
        },
        fused="layer_norm",
    ),
    post_norm(
        "BERT",
        "bert.BertSelfOutput",
        "bert:add_layer_norm",
        BERT,
        group="L1",
        fused="layer_norm",
    ),
    post_norm(
        "DeBERTa",
        "deberta.DebertaSelfOutput",
        "deberta:add_layer_norm",
        DEBERTA,
        group="L5",
    ),
)

#: model, layer, group, spec, size, configuration, norm, what reads the sum
SANDWICHES = (
    (
        "OLMo 2",
        "olmo2.Olmo2DecoderLayer",
        "R2",
        "olmo2:rms_norm_add",
        4096,
        OLMO2,
        "post_attention_layernorm",
        "mlp",
    ),
    (
        "Gemma 3",
        "gemma3.Gemma3DecoderLayer",
        "R3",
        "gemma3:rms_norm_add",
        1152,
        GEMMA3,
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
    ),
    (
        "GLM-4",
        "glm4.Glm4DecoderLayer",
        "R1",
        "glm4:rms_norm_add",
        4096,
        config("Glm4"),
        "post_self_attn_layernorm",
        "post_attention_layernorm",
    ),
)

POST_ADD = (
    *(
        Case(
            model,
            hf(*layer.split(".")),
            group,
            spec,
            size,
            (made, 0),
            stubs=("self_attn", "mlp"),
            call=in_block("self_attn", after=after, wrap=pair),
            state=norm,
            pairs=UNMIXED,
        )
        for model, layer, group, spec, size, made, norm, after in SANDWICHES
    ),
    Case(
        "Swin V2",
        hf("swinv2", "Swinv2Layer"),
        "L1",
        "swin_v2:layer_norm_add",
        96,
        (SWIN_V2, 96, (2, 2), 3),
        stubs=("attention", "intermediate", "output"),
        call=in_block(
            "attention",
            after="intermediate",
            wrap=lambda x: (x,),
            run=lambda block, residual: block(residual, (2, 2)),
        ),
        state="layernorm_before",
        fused="layer_norm",
        lead=(2, 4),
        pairs=UNMIXED,
    ),
)

CASES: tuple[Case, ...] = (*PRE_ADD, *POST_ADD)
