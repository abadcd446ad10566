"""The emitted reference returns what the class returns, dtype included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.bounds import corners
from conformance.case import Case
from conformance.cases import CASES
from conformance.harness import Run, run
from conformance.shapes import cast_before, cast_last, modulated, torch_layer_norm

RUNS = [
    pytest.param(case, pair, id=f"{case.id}-{'-'.join(dict.fromkeys(pair))}")
    for case in CASES
    for pair in case.pairs
]

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and")


def differing(got: torch.Tensor, expected: torch.Tensor) -> str:
    """How many values differ, and the worst of them."""
    wrong = (got != expected) & ~(got.isnan() & expected.isnan())
    error = (got.double() - expected.double()).abs().nan_to_num(torch.inf)
    worst = int((error * wrong).argmax())
    values = got.flatten()[worst].item(), expected.flatten()[worst].item()
    return (
        f"{int(wrong.sum())} of {wrong.numel()} differ, as {values[0]} != {values[1]}"
    )


def check(case: Case, done: Run) -> None:
    outputs = done.reference()
    for got, expected in zip(outputs, done.expected, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert expected.isfinite().all()
    if case.fused is None:
        for got, expected in zip(outputs, done.expected, strict=True):
            assert torch.equal(got, expected), differing(got, expected)
        return
    for got, expected, between in zip(
        outputs, done.expected, corners(done.reference), strict=True
    ):
        assert between.outside(got) == 0, differing(got, between.high)
        assert between.outside(expected) == 0, differing(got, expected)


@pytest.mark.parametrize(("case", "pair"), RUNS)
def test_the_reference_is_the_class(case: Case, pair: tuple[str, str]) -> None:
    check(case, run(case, pair))


#: specs that are nearly those of the classes
OTHERS = {
    "Llama_3-LlamaRMSNorm-rms_norm-4096": cast_last(1e-5),
    "gpt-oss-GptOssRMSNorm-rms_norm-2880": cast_before(1e-5),
    "Qwen3-Next,_q_and_k-Qwen3NextRMSNorm-qk_norm-256": cast_last(
        1e-6, affine={"weight_offset": 1, "offset_precision": "param"}
    ),
    "BERT-LayerNorm-layer_norm-768": torch_layer_norm(1e-6),
    "Nemotron-4-NemotronLayerNorm1P-layer_norm-6144": torch_layer_norm(
        1e-5, affine={"bias": True, "weight_offset": 1}
    ),
    "FLUX.1-AdaLayerNormZero-modulated_layer_norm-3072": modulated(1e-6, rounding={}),
    "Wan_2.1-WanTransformerBlock-modulated_layer_norm-1536": modulated(1e-6),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_spec_that_rounds_otherwise_is_told_apart(name: str) -> None:
    case = next(case for case in CASES if case.id == name)
    other = replace(case, spec=OTHERS[name])
    with pytest.raises(AssertionError):
        check(other, run(other, ("bfloat16", "bfloat16")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_reference_is_the_class_on_strided_rows(case: Case) -> None:
    check(case, run(case, case.pairs[1], strided=True))
