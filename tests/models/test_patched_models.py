"""Tiny models of many families, with their norms replaced: the same results."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from support.build import load, text_of

from normgen.loader import parse

#: What almost every config takes; the widths have nothing to do with one another.
TINY = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ROUNDED = "rounding: {normalized: io}\n    out_dtype: promote"
OFFSET = "affine: {weight_offset: 1}"
LAYER_NORM = "torch.nn.modules.normalization.LayerNorm"


@dataclass(frozen=True)
class Norm:
    """A class of a model, the fields that make it, and how often it stands there."""

    replaces: str
    count: int
    fields: str
    eps: str = "1e-6"
    variant: str = "rms_norm"
    hidden_size: Any = "dynamic"


@dataclass(frozen=True)
class Family:
    """A model, its norms, and whether they are exact."""

    model: str
    config: dict[str, Any]
    norms: tuple[Norm, ...]
    is_exact: bool = True


def rms(module: str, name: str, count: int, fields: str = ROUNDED, **more: Any) -> Norm:
    return Norm(f"transformers.models.{module}.{name}", count, fields, **more)


def layer_norm(count: int, eps: str) -> Norm:
    return Norm(LAYER_NORM, count, "affine: {bias: true}", eps, "layer_norm")


MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 16,
}
EXPERTS = {
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "shared_expert_intermediate_size": 16,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
MAMBA = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 8,
    "expand": 2,
    "num_heads": 8,
    "head_dim": 8,
    "n_groups": 2,
    "chunk_size": 8,
}

FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM",
        TINY | {"rms_norm_eps": 1e-5},
        (rms("llama.modeling_llama", "LlamaRMSNorm", 5, eps="1e-5"),),
    ),
    "mistral": Family(
        "MistralForCausalLM",
        TINY,
        (rms("mistral.modeling_mistral", "MistralRMSNorm", 5),),
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        TINY,
        (rms("qwen2.modeling_qwen2", "Qwen2RMSNorm", 5),),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        TINY,
        (
            rms("qwen3.modeling_qwen3", "Qwen3RMSNorm", 5, hidden_size=32),
            rms("qwen3.modeling_qwen3", "Qwen3RMSNorm", 4, hidden_size=16),
        ),
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {k: v for k, v in TINY.items() if k != "head_dim"} | {"rms_norm_eps": 1e-5},
        (rms("phi3.modeling_phi3", "Phi3RMSNorm", 5, eps="1e-5"),),
    ),
    "granite": Family(
        "GraniteForCausalLM",
        TINY | {"residual_multiplier": 0.22},
        (rms("granite.modeling_granite", "GraniteRMSNorm", 5),),
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        TINY | {"rms_norm_eps": 1.5625e-7},
        (rms("glm4.modeling_glm4", "Glm4RMSNorm", 9, eps="1.5625e-7"),),
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        TINY,
        (rms("gemma2.modeling_gemma2", "Gemma2RMSNorm", 9, OFFSET),),
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        TINY,
        (rms("gemma3.modeling_gemma3", "Gemma3RMSNorm", 13, OFFSET),),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        {k: v for k, v in TINY.items() if k != "head_dim"} | {"rms_norm_eps": 1e-5},
        (rms("olmo2.modeling_olmo2", "Olmo2RMSNorm", 9, "", eps="1e-5"),),
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        TINY | EXPERTS | {"num_local_experts": 4, "rms_norm_eps": 1e-5},
        (rms("gpt_oss.modeling_gpt_oss", "GptOssRMSNorm", 5, "", eps="1e-5"),),
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        TINY
        | EXPERTS
        | MLA
        | {"head_dim": 8, "num_key_value_heads": 4, "first_k_dense_replace": 1},
        (rms("deepseek_v3.modeling_deepseek_v3", "DeepseekV3RMSNorm", 9),),
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        TINY | EXPERTS | LINEAR,
        (
            rms("qwen3_next.modeling_qwen3_next", "Qwen3NextRMSNorm", 7, OFFSET),
            rms(
                "qwen3_next.modeling_qwen3_next",
                "Qwen3NextRMSNormGated",
                1,
                "rounding: {normalized: io}\n    gate: {position: after}",
            ),
        ),
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        MAMBA,
        (
            rms("mamba2.modeling_mamba2", "Mamba2RMSNorm", 3, eps="1e-5"),
            rms(
                "mamba2.modeling_mamba2",
                "MambaRMSNormGated",
                2,
                f"{ROUNDED}\n    group_size: 32\n    gate: {{position: before}}",
                eps="1e-5",
                hidden_size=64,
            ),
        ),
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        {
            "vocab_size": 48,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 40,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        (
            rms(
                "t5.modeling_t5",
                "T5LayerNorm",
                12,
                "rounding: {normalized: weight}\n    out_dtype: promote",
            ),
        ),
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        {k: v for k, v in TINY.items() if k != "head_dim"},
        (
            rms(
                "olmo.modeling_olmo",
                "OlmoLayerNorm",
                5,
                "affine: {weight: none}",
                variant="layer_norm",
                eps="1e-5",
            ),
        ),
        is_exact=False,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        TINY,
        (layer_norm(5, "1e-5"),),
        is_exact=False,
    ),
    "bert": Family(
        "BertForMaskedLM",
        TINY | {"layer_norm_eps": 1e-12},
        (layer_norm(6, "1e-12"),),
        is_exact=False,
    ),
}


def spec_of(family: Family) -> str:
    entries = []
    for i, norm in enumerate(family.norms):
        entries.append(
            f"""
  - name: {norm.variant}_{i}
    variant: {norm.variant}
    hidden_size: {norm.hidden_size}
    eps: {norm.eps}
    replaces: [{norm.replaces}]
    {norm.fields}
"""
        )
    return f"version: 1\nkernels:{''.join(entries)}"


@functools.cache
def generated(name: str) -> ModuleType:
    """The module of a family, which runs its reference on the CPU."""
    spec = parse(spec_of(FAMILIES[name]), name)
    module = load(text_of(*spec.kernels), f"generated_for_{name}")
    module._INTERPRETED = False
    return module


def build(name: str, dtype: torch.dtype) -> torch.nn.Module:
    """A model with random weights, those of its norms away from what they start at."""
    family = FAMILIES[name]
    model_class = getattr(transformers, family.model)
    accepted = model_class.config_class().to_dict().keys()
    config = {k: v for k, v in family.config.items() if k in accepted}
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**config)).to(dtype).eval()
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


def inputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    given = {"input_ids": torch.randint(1, 48, (2, 12), generator=generator)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = given["input_ids"].flip(1)
    return given


def run(model: torch.nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The logits of a model, and the gradients of its parameters."""
    model.zero_grad()
    logits = model(**inputs(model)).logits
    logits.float().square().mean().backward()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return logits.detach(), gradients


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """How far gradients are from others, all together, relative to the others."""
    assert one.keys() == other.keys()
    ours, theirs = (
        torch.cat([part.double().flatten() for part in parts.values()])
        for parts in (one, other)
    )
    return ((ours - theirs).norm() / theirs.norm()).item()


def reordered(name: str) -> float:
    """How far results in float32 may move where norms add up in another order.

    The sum of a row of n terms moves by at most (log2(n) + 12) * 2^-24 of its
    magnitude, once in forward and once in backward.  To first order the results move by
    that once a norm: the tiny models with their random weights amplify nothing.
    """
    norms = FAMILIES[name].norms
    return sum(norm.count for norm in norms) * (math.log2(64) + 12) * 2.0**-24


every_family = pytest.mark.parametrize("name", FAMILIES)
in_both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def test_there_are_many_families() -> None:
    assert len(FAMILIES) >= 12


@every_family
def test_every_norm_of_the_class_is_replaced(name: str) -> None:
    model = build(name, torch.float32)
    report = generated(name).patch(model)
    norms = enumerate(FAMILIES[name].norms)
    assert not report.left
    assert Counter(entry for _, entry in report.replaced) == {
        f"{norm.variant}_{i}": norm.count for i, norm in norms
    }


@in_both
@every_family
def test_logits_are_the_same(name: str, dtype: torch.dtype) -> None:
    """Bit for bit, or where torch sums in an order of its own within a bound."""
    model = build(name, dtype)
    with torch.no_grad():
        expected = model(**inputs(model)).logits
        generated(name).patch(model)
        got = model(**inputs(model)).logits
    assert got.dtype == expected.dtype
    if FAMILIES[name].is_exact:
        assert torch.equal(got, expected)
    elif dtype == torch.float32:
        assert distance({"": got}, {"": expected}) <= reordered(name)
    else:
        exact = {"": run(build(name, dtype).float())[0]}
        assert distance({"": got}, exact) <= 1.25 * distance({"": expected}, exact)


@every_family
def test_gradients_are_the_same_in_float32(name: str) -> None:
    model = build(name, torch.float32)
    _, expected = run(model)
    generated(name).patch(model)
    _, got = run(model)
    assert distance(got, expected) <= reordered(name)


@every_family
def test_gradients_in_bfloat16_are_as_close_to_those_in_float32(name: str) -> None:
    model = build(name, torch.bfloat16)
    _, expected = run(model)
    generated(name).patch(model)
    _, got = run(model)
    _, exact = run(build(name, torch.bfloat16).float())
    assert distance(got, exact) <= 1.25 * distance(expected, exact)


@every_family
def test_the_state_of_a_model_stays_and_unpatch_restores_it(name: str) -> None:
    model = build(name, torch.float32)
    modules, state = list(model.modules()), model.state_dict(keep_vars=True)
    patched = generated(name)
    logits = model(**inputs(model)).logits
    patched.patch(model)
    assert modules != list(model.modules())
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(state)
    assert all(after[key] is tensor for key, tensor in state.items())
    patched.unpatch(model)
    assert modules == list(model.modules())
    assert torch.equal(model(**inputs(model)).logits, logits)


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_a_patched_model_is_saved_and_generates_as_before(name, tmp_path) -> None:
    model = build(name, torch.float32)
    given = inputs(model)["input_ids"]
    expected = model.generate(given, max_new_tokens=4, do_sample=False)
    generated(name).patch(model)
    got = model.generate(given, max_new_tokens=4, do_sample=False)
    assert torch.equal(got, expected)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    again.eval()
    assert torch.equal(again(**inputs(again)).logits, model(**inputs(model)).logits)


def test_a_whole_step_of_training_with_checkpoints_is_the_same() -> None:
    """Gradient checkpointing runs each block, and so each norm, a second time."""
    models = [build("llama", torch.bfloat16).train() for _ in range(2)]
    generated("llama").patch(models[1])
    for model in models:
        model.gradient_checkpointing_enable()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run(model)
        optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
