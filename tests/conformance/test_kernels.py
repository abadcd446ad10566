"""The generated kernels beside the classes, forward and backward.

Which classes: one for each way in which the parts of a kernel can differ.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance import gradients
from conformance.bounds import Given, corners
from conformance.case import Case
from conformance.cases import CASES
from conformance.harness import Run, norm_of, run, theirs_of

FORWARD = (
    "Llama_3-LlamaRMSNorm-rms_norm-4096",
    "Llama_3-LlamaDecoderLayer-add_rms_norm-4096",
    "Granite_3-GraniteDecoderLayer-add_rms_norm-4096",
    "OLMo_2-Olmo2DecoderLayer-rms_norm_add-4096",
    "Gemma_3-Gemma3RMSNorm-rms_norm-1152",
    "T5-T5LayerNorm-rms_norm-512",
    "Muse_Spark-MuseSparkTextCenteredRMSNorm-rms_norm-8192",
    "GLM-5-Glm5NextTextUnweightedRMSNorm-4096",
    "ImageGPT-ImageGPTLayerNorm-rms_norm-512",
    "Mamba_2-MambaRMSNormGated-gated_rms_norm-8192",
    "Qwen3-Next-Qwen3NextRMSNormGated-gated_rms_norm-128",
    "Kimi_Linear-KimiLinearRMSNormGated-gated_rms_norm-128",
    "BERT-LayerNorm-layer_norm-768",
    "Command-R,_q_and_k-CohereLayerNorm-qk_norm-128",
    "DeBERTa-DebertaLayerNorm-layer_norm-768",
    "DINOv3-DINOv3ViTLayer-add_layer_norm-384",
    "GPT-NeoX,_both_norms-GPTNeoXLayer-6144",
    "xLSTM_7B-xLSTMMultiHeadLayerNorm-multihead_norm-4096",
    "ConvNeXt-ConvNextLayerNorm-channel_norm-96",
    "timm-SimpleNorm-simple_norm-256",
    "Pocket_TTS,_time_embedding-PocketTTSTimestepNorm-timestep_norm-512",
    "Qwen3-Next-l2norm-l2_norm-128",
    "Swin_V2,_q_and_k-normalize-qk_norm-32",
    "Wan_2.1,_VAE-WanRMS_norm-channel_norm-96",
    "Inkling_2-Inkling2L2Clip-l2_clip-128",
    "FLUX.1-AdaLayerNormZero-modulated_layer_norm-3072",
    "Wan_2.1-WanTransformerBlock-modulated_layer_norm-1536",
    "Lumina_2,_residual-Lumina2TransformerBlock-rms_norm_add-2304",
    "timm,_SiLU-RmsNormAct-256",
)

#: classes that take their own mean and rsqrt, which can be told what these are
BY_HAND = (
    "Llama_3-LlamaRMSNorm-rms_norm-4096",
    "Gemma_3-Gemma3RMSNorm-rms_norm-1152",
    "gpt-oss-GptOssRMSNorm-rms_norm-2880",
    "T5-T5LayerNorm-rms_norm-512",
    "Muse_Spark-MuseSparkTextCenteredRMSNorm-rms_norm-8192",
    "Llama_4,_q_and_k-Llama4TextL2Norm-128",
    "Command-R-CohereLayerNorm-layer_norm-8192",
    "Command-R,_q_and_k-CohereLayerNorm-qk_norm-128",
    "Kimi_Linear-KimiLinearRMSNorm-rms_norm-2304",
)

BACKWARD = (
    "Llama_3-LlamaRMSNorm-rms_norm-4096",
    "Gemma_3-Gemma3RMSNorm-rms_norm-1152",
    "T5-T5LayerNorm-rms_norm-512",
    "BERT-LayerNorm-layer_norm-768",
    "Nemotron-4-NemotronLayerNorm1P-layer_norm-6144",
    "Command-R-CohereLayerNorm-layer_norm-8192",
    "DeBERTa-DebertaLayerNorm-layer_norm-768",
    "Llama_4,_q_and_k-Llama4TextL2Norm-128",
)

#: In a half precision torch's CPU is not like a GPU: outside of its vector loop it
#: rounds an inverse root two times, and it rounds eps before adding it.  32 rows fill
#: the loop, and beside rows of this magnitude eps is nothing.
AS_ON_A_GPU = (
    "timm-SimpleNorm-simple_norm-256",
    "Pocket_TTS,_time_embedding-PocketTTSTimestepNorm-timestep_norm-512",
    "Qwen3-Next-l2norm-l2_norm-128",
)

BY_ID = {case.id: case for case in CASES}
BY_ID |= {
    name: replace(BY_ID[name], lead=(4, 8), magnitude=100.0) for name in AS_ON_A_GPU
}
PAIRS = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))


def chosen(ids: tuple[str, ...]) -> list:
    """The cases of these ids, with each pair of dtypes that they take."""
    return [
        pytest.param(BY_ID[name], pair, id=f"{name}-{'-'.join(dict.fromkeys(pair))}")
        for name in ids
        for pair in PAIRS
        if pair in BY_ID[name].pairs
    ]


@pytest.fixture(autouse=True)
def _interpreter(
    bfloat16_rounds_to_nearest: None, alignment_claims_are_checked: None
) -> None:
    """The interpreter rounds as a GPU does, and looks at claimed addresses."""


def between(done: Run, outputs: tuple[torch.Tensor, ...]) -> None:
    """Kernel and class lie where any order of adding puts them."""
    ends = corners(done.reference, activations=True)
    for got, expected, allowed in zip(outputs, done.expected, ends, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert allowed.outside(expected) == 0
        assert allowed.outside(got) == 0


@pytest.mark.parametrize(("case", "pair"), chosen(FORWARD))
def test_the_kernel_is_the_class_up_to_the_order_of_adding(
    case: Case, pair: tuple[str, str]
) -> None:
    done = run(case, pair)
    between(done, done.kernel())


@pytest.mark.parametrize(("case", "pair"), chosen(BY_HAND))
def test_the_kernel_is_the_class_given_its_mean_and_rstd(
    case: Case, pair: tuple[str, str]
) -> None:
    norm = norm_of(case).model_copy(update={"save_stats": "always"})
    done = run(case, pair, norm=norm)
    y, *mean, rstd = done.kernel()
    theirs = theirs_of(case, getattr(torch, pair[1]))
    with torch.no_grad(), Given(rstd, *mean):
        expected = theirs(done.x)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)


@pytest.mark.parametrize(("case", "pair"), chosen(BACKWARD))
def test_the_gradients_are_those_of_the_class_in_float64(
    case: Case, pair: tuple[str, str]
) -> None:
    done = run(case, pair)
    theirs = theirs_of(case, getattr(torch, pair[1]))
    dy = torch.randn(done.expected[0].shape).to(done.expected[0].dtype)
    for name, (got, allowed) in gradients.compared(done, theirs, case, dy).items():
        assert allowed.outside(got.double()) == 0, name
