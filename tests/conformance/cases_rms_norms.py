"""RMS norms of transformers, and torch's own in its models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.adapters import applied, method
from conformance.case import PAIRS, UNMIXED, Case, Config
from conformance.shapes import cast_before, cast_last, cast_to_weight, hf

#: model, class, spec (None: written out for the group), size, eps
Row = tuple[str, str, str | None, int, float]

R1: tuple[Row, ...] = (
    ("Llama 3", "llama.LlamaRMSNorm", "llama:rms_norm", 4096, 1e-5),
    ("Llama 4", "llama4.Llama4TextRMSNorm", None, 5120, 1e-5),
    ("Mistral 7B", "mistral.MistralRMSNorm", "mistral:rms_norm", 4096, 1e-5),
    ("Mixtral", "mixtral.MixtralRMSNorm", None, 4096, 1e-5),
    ("Qwen2.5", "qwen2.Qwen2RMSNorm", "qwen2:rms_norm", 3584, 1e-6),
    ("Qwen3", "qwen3.Qwen3RMSNorm", "qwen3:rms_norm", 1024, 1e-6),
    ("Qwen3, q and k", "qwen3.Qwen3RMSNorm", "qwen3:qk_norm", 128, 1e-6),
    ("Phi-3", "phi3.Phi3RMSNorm", None, 3072, 1e-5),
    (
        "DeepSeek-V3",
        "deepseek_v3.DeepseekV3RMSNorm",
        "deepseek_v3:rms_norm",
        7168,
        1e-6,
    ),
    (
        "DeepSeek-V3, kv_a",
        "deepseek_v3.DeepseekV3RMSNorm",
        "deepseek_v3:latent_norm",
        512,
        1e-6,
    ),
    ("Falcon-H1", "falcon_h1.FalconH1RMSNorm", "falcon_h1:rms_norm", 4096, 1e-5),
    ("Mamba", "mamba.MambaRMSNorm", None, 768, 1e-5),
    ("Mamba 2", "mamba2.Mamba2RMSNorm", "mamba2:rms_norm", 4096, 1e-5),
    ("Falcon Mamba", "falcon_mamba.FalconMambaRMSNorm", None, 4096, 1e-5),
    ("Granite 3", "granite.GraniteRMSNorm", "granite:rms_norm", 2048, 1e-5),
    (
        "Kimi Linear",
        "kimi_linear.KimiLinearRMSNorm",
        "kimi_linear:rms_norm",
        2304,
        1e-5,
    ),
    (
        "Kimi Linear, kv_a",
        "kimi_linear.KimiLinearRMSNorm",
        "kimi_linear:kv_norm",
        512,
        1e-6,
    ),
    ("GLM-4", "glm4.Glm4RMSNorm", "glm4:rms_norm", 4096, 1.5625e-7),
    ("Jamba", "jamba.JambaRMSNorm", None, 16, 1e-6),
    ("Bamba", "bamba.BambaRMSNorm", None, 4096, 1e-5),
    ("Zamba2", "zamba2.Zamba2RMSNorm", None, 2560, 1e-5),
    ("BitNet", "bitnet.BitNetRMSNorm", None, 6912, 1e-5),
    ("SmolLM3", "smollm3.SmolLM3RMSNorm", None, 2048, 1e-6),
    ("Apertus", "apertus.ApertusRMSNorm", None, 4096, 1e-5),
    ("LFM2", "lfm2.Lfm2RMSNorm", None, 2560, 1e-5),
    ("OLMoE", "olmoe.OlmoeRMSNorm", None, 2048, 1e-5),
    ("MiniMax-M2", "minimax_m2.MiniMaxM2RMSNorm", None, 3072, 1e-6),
    ("ZAYA", "zaya.ZayaRMSNorm", None, 2048, 1e-5),
    ("Chameleon", "chameleon.ChameleonRMSNorm", "chameleon:rms_norm", 4096, 1e-5),
    ("xLSTM 7B", "xlstm.xLSTMRMSNorm", "xlstm:rms_norm", 4096, 1e-6),
)

R2: tuple[Row, ...] = (
    ("gpt-oss", "gpt_oss.GptOssRMSNorm", "gpt_oss:rms_norm", 2880, 1e-5),
    ("OLMo 2", "olmo2.Olmo2RMSNorm", "olmo2:rms_norm", 4096, 1e-6),
    ("OLMo 3", "olmo3.Olmo3RMSNorm", "olmo2:rms_norm", 5120, 1e-6),
    ("Helium", "helium.HeliumRMSNorm", None, 2560, 1e-8),
    ("Moshi", "moshi.MoshiRMSNorm", "moshi:rms_norm", 4096, 1e-8),
    ("Gemma 3n", "gemma3n.Gemma3nRMSNorm", None, 2048, 1e-6),
    ("Gemma 4", "gemma4.Gemma4RMSNorm", None, 2304, 1e-6),
    ("Trinity", "afmoe.AfmoeRMSNorm", None, 2048, 1e-5),
    ("Nemotron-H", "nemotron_h.NemotronHRMSNorm", "nemotron_h:rms_norm", 4096, 1e-5),
    ("Inkling 2", "inkling2.Inkling2RMSNorm", None, 4608, 1e-6),
    ("Lara Mini", "lara_mini.LaraMiniRMSNorm", None, 1024, 1e-6),
)

R3: tuple[Row, ...] = (
    ("Gemma", "gemma.GemmaRMSNorm", "gemma:rms_norm", 2048, 1e-6),
    ("Gemma 2", "gemma2.Gemma2RMSNorm", None, 2304, 1e-6),
    ("Gemma 3", "gemma3.Gemma3RMSNorm", "gemma3:rms_norm", 1152, 1e-6),
    ("Gemma 3, q and k", "gemma3.Gemma3RMSNorm", "gemma3:qk_norm", 256, 1e-6),
    ("Qwen3-Next", "qwen3_next.Qwen3NextRMSNorm", "qwen3_next:rms_norm", 2048, 1e-6),
    (
        "Qwen3-Next, q and k",
        "qwen3_next.Qwen3NextRMSNorm",
        "qwen3_next:qk_norm",
        256,
        1e-6,
    ),
    ("Qwen3.5", "qwen3_5.Qwen3_5RMSNorm", None, 4096, 1e-6),
    ("RecurrentGemma", "recurrent_gemma.RecurrentGemmaRMSNorm", None, 2560, 1e-6),
    ("T5Gemma", "t5gemma.T5GemmaRMSNorm", None, 2304, 1e-6),
    ("VaultGemma", "vaultgemma.VaultGemmaRMSNorm", None, 2304, 1e-6),
)

R4: tuple[Row, ...] = (
    ("T5", "t5.T5LayerNorm", "t5:rms_norm", 512, 1e-6),
    ("mT5", "mt5.MT5LayerNorm", "t5:rms_norm", 768, 1e-6),
    ("UMT5", "umt5.UMT5LayerNorm", "t5:rms_norm", 4096, 1e-6),
    ("LongT5", "longt5.LongT5LayerNorm", "t5:rms_norm", 1024, 1e-6),
    (
        "Switch Transformers",
        "switch_transformers.SwitchTransformersLayerNorm",
        "t5:rms_norm",
        768,
        1e-6,
    ),
    ("UDOP", "udop.UdopLayerNorm", None, 1024, 1e-6),
    ("Pix2Struct", "pix2struct.Pix2StructLayerNorm", None, 768, 1e-6),
)

#: without a weight: made of an eps alone
R5: tuple[Row, ...] = (
    ("Llama 4, q and k", "llama4.Llama4TextL2Norm", None, 128, 1e-5),
    ("nanochat", "nanochat.NanoChatRMSNorm", None, 768, 1e-6),
    ("HRM-Text", "hrm_text.HrmTextRMSNorm", None, 1536, 1e-6),
    ("ESMFold 2", "esmfold2.EsmFold2RMSNorm", None, 256, 1e-6),
    ("Inkling 2", "inkling2.Inkling2UnweightedRMSNorm", None, 4608, 1e-6),
)

NO_WEIGHT = {"affine": {"weight": "none"}}
OFFSET = {"affine": {"weight_offset": 1}}
#: T5 rounds to the dtype of the weight, also where x is wider
T5_PAIRS = (*PAIRS, ("float32", "bfloat16"))


def _path(name: str) -> str:
    model, cls = name.split(".")
    return hf(model, cls)


def _weighted(group: str, rows: tuple[Row, ...], written: Any, **more: Any) -> Iterator:
    """Classes made of a size and an eps."""
    for model, name, spec, size, eps in rows:
        own = spec or written(eps)
        yield Case(model, _path(name), group, own, size, (size,), {"eps": eps}, **more)


def _weightless(rows: tuple[Row, ...]) -> Iterator[Case]:
    for model, name, _, size, eps in rows:
        spec = cast_last(eps, **NO_WEIGHT)
        yield Case(
            model, _path(name), "R5", spec, size, (), {"eps": eps}, pairs=UNMIXED
        )


OTHERS = (
    Case(
        "CPM-Ant",
        hf("cpmant", "CpmAntLayerNorm"),
        "R1",
        cast_before(1e-6),
        4096,
        (Config("types.SimpleNamespace", {"eps": 1e-6, "hidden_size": 4096}),),
    ),
    Case(
        "xLSTM with bias",
        hf("xlstm", "xLSTMRMSNorm"),
        "R1b",
        cast_before(1e-6, affine={"bias": True}),
        4096,
        (4096,),
        {"use_bias": True},
    ),
    Case(
        "DeepSeek-V4",
        hf("deepseek_v4", "DeepseekV4RMSNorm"),
        "R2",
        "deepseek_v4:rms_norm",
        4096,
        (4096,),
        {"eps": 1e-6},
        pairs=(("float32", "float32"), ("bfloat16", "float32")),
    ),
    Case(
        "Qwen4, grouped",
        hf("qwen4_exp", "Qwen4ExpTextRMSNorm"),
        "R3",
        cast_last(1e-6, **OFFSET, group_size=256),
        2048,
        (2048,),
        {"group_size": 256, "eps": 1e-6},
    ),
    Case(
        "Muse Spark",
        hf("muse_spark", "MuseSparkTextCenteredRMSNorm"),
        "R3b",
        "muse_spark:rms_norm",
        8192,
        (8192,),
        {"eps": 1e-5},
    ),
    Case(
        "Muse Spark, after a branch",
        hf("muse_spark", "MuseSparkTextInputScaledRMSNorm"),
        "RI",
        "muse_spark:input_scaled_norm",
        8192,
        (8192,),
        {"eps": 1e-8},
    ),
    Case(
        "Falcon Mamba, B and C",
        hf("falcon_mamba", "FalconMambaWeightlessRMSNorm"),
        "R5",
        cast_last(1e-6, **NO_WEIGHT),
        16,
        (16,),
        pairs=UNMIXED,
    ),
    Case(
        "Gemma 3n, v",
        hf("gemma3n", "Gemma3nRMSNorm"),
        "R5",
        cast_last(1e-6, **NO_WEIGHT),
        256,
        (256,),
        {"with_scale": False},
        pairs=UNMIXED,
    ),
    Case(
        "DeepSeek-V4, hyper-connections",
        hf("deepseek_v4", "DeepseekV4UnweightedRMSNorm"),
        "R5b",
        "deepseek_v4:unweighted_rms_norm",
        16384,
        (1e-6,),
        pairs=UNMIXED,
    ),
    Case(
        "GLM-5",
        hf("glm5_next", "Glm5NextTextUnweightedRMSNorm"),
        "R5b",
        cast_last(1e-5, **NO_WEIGHT, rounding={"rstd": "io"}),
        4096,
        (1e-5,),
        pairs=UNMIXED,
    ),
    Case(
        "HY-V4",
        hf("hy_v4", "HYV4UnweightedRMSNorm"),
        "R5c",
        "hy_v4:rms_factor",
        11264,
        (1e-5,),
        pairs=UNMIXED,
    ),
    Case(
        "ImageGPT",
        hf("imagegpt", "ImageGPTLayerNorm"),
        "R6",
        "imagegpt:rms_norm",
        512,
        (512,),
        {"eps": 1e-5},
    ),
    Case(
        "Reformer",
        hf("reformer", "LSHSelfAttention._len_norm"),
        "R6",
        cast_last(1e-6, **NO_WEIGHT, statistics={"precision": "io_stepwise"}),
        64,
        call=method,
        pairs=UNMIXED,
    ),
)

TORCH = (
    Case(
        "FLUX.1, q and k",
        "torch.nn.RMSNorm",
        "R2",
        "flux:qk_norm",
        128,
        (128,),
        {"eps": 1e-6},
        lead=(2, 3, 4),
    ),
    Case(
        "Wan 2.1, q and k",
        "torch.nn.RMSNorm",
        "R2",
        "wan:qk_norm",
        1536,
        (1536,),
        {"eps": 1e-6},
    ),
    Case(
        "any, without eps",
        "torch.nn.RMSNorm",
        "R2",
        "dynamic:rms_norm",
        1920,
        (1920,),
        eps=1.1920928955078125e-07,
    ),
    Case(
        "DiffLlama",
        "torch.nn.RMSNorm",
        "R5",
        cast_last(1e-5, **NO_WEIGHT),
        128,
        (128,),
        {"eps": 1e-5, "elementwise_affine": False},
        pairs=UNMIXED,
    ),
    Case(
        "any",
        "torch.nn.functional.rms_norm",
        "R5",
        cast_last(1e-6, **NO_WEIGHT),
        640,
        call=applied(normalized_shape=(640,), eps=1e-6),
        pairs=UNMIXED,
    ),
)

CASES: tuple[Case, ...] = (
    *_weighted("R1", R1, cast_before),
    *_weighted("R2", R2, cast_last),
    *_weighted("R3", R3, lambda eps: cast_last(eps, **OFFSET)),
    *_weighted("R4", R4, cast_to_weight, pairs=T5_PAIRS),
    *_weightless(R5),
    *OTHERS,
    *TORCH,
)
