"""Norms inside real modules, up to what reads them; and modules that norm on the way.

As in cases_blocks, attention, MLP and projections are stubs that return drawn rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.adapters import Call, Draw, Stub, Watch
from conformance.case import UNMIXED, Case, Config
from conformance.shapes import HF, cast_to_weight, hf, torch_layer_norm

MAMBA2 = Config("transformers.Mamba2Config", {"hidden_size": 4096})
GPT_NEOX = Config("transformers.GPTNeoXConfig", {"intermediate_size": 64})
ESMFOLD = Config(
    "types.SimpleNamespace",
    {
        "sequence_dim": 8,
        "resnet_dim": 8,
        "num_resnet_blocks": 0,
        "num_angles": 7,
        "epsilon": 1e-8,
    },
)


def two_norms(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """A parallel block: two norms of one x."""
    theirs.attention.returns, theirs.mlp.returns = (x, None), x
    first, second = (
        Watch(theirs.input_layernorm),
        Watch(theirs.post_attention_layernorm),
    )
    theirs(x, None)
    return Call((first.made, second.made))


def first_norm(stub: str, norm: str) -> Callable[..., Call]:
    """A block whose first step is the norm, up to the stub that reads it."""

    def call(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
        theirs.get_submodule(stub).returns = x
        watch = Watch(theirs.get_submodule(norm))
        theirs(x)
        return Call(watch.made)

    return call


def angles(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """The angles of ESMFold: rows of two, which the last projection returns."""
    for stub in theirs.modules():
        if isinstance(stub, Stub):
            stub.returns = x.flatten(-2)
    return Call(theirs(x, x)[1])


def rfd4(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """Times sigmoid of one projection, plus another; nothing is masked."""
    scale, shift = (draw.conditioning(x.shape[0], x.shape[-1]) for _ in range(2))
    theirs.get_submodule("to_gamma.0").returns = scale
    theirs.to_beta.returns = shift
    mask = torch.ones(x.shape[:-1], dtype=x.dtype)
    return Call(theirs(x, scale, mask), {"scale": scale, "shift": shift})


CASES: tuple[Case, ...] = (
    Case(
        "GPT-NeoX, both norms",
        hf("gpt_neox", "GPTNeoXLayer"),
        "L1",
        torch_layer_norm(1e-5, second_affine=True),
        6144,
        (GPT_NEOX, 0),
        stubs=("attention", "mlp"),
        call=two_norms,
        state={
            "input_layernorm.weight": "weight",
            "input_layernorm.bias": "bias",
            "post_attention_layernorm.weight": "weight2",
            "post_attention_layernorm.bias": "bias2",
        },
        fused="layer_norm",
        pairs=UNMIXED,
    ),
    Case(
        "Mamba 2, float32 residual",
        hf("mamba2", "Mamba2Block"),
        "R1",
        cast_to_weight(1e-5, rounding={"input": "weight", "normalized": "weight"}),
        4096,
        (MAMBA2, 0),
        stubs=("mixer",),
        call=first_norm("mixer", "norm"),
        state="norm",
        pairs=(("float32", "bfloat16"), ("float32", "float16")),
    ),
    Case(
        "ESMFold, angles",
        f"{HF}.esm.modeling_esmfold.EsmFoldAngleResnet",
        "N6",
        {
            "variant": "l2_norm",
            "eps": 1e-8,
            "eps_placement": "clamp_stat",
            "affine": {"weight": "none"},
            "statistics": {"precision": "io_stepwise", "root": "sqrt"},
        },
        2,
        (ESMFOLD,),
        stubs=("linear_in", "linear_initial", "linear_out"),
        call=angles,
        state=lambda theirs: {},
        lead=(2, 3, 7),
        pairs=UNMIXED,
    ),
    Case(
        "RFD4 Proteina",
        "diffusers.models.transformers.transformer_rfd4_proteina"
        ".RFD4ProteinaAdaptiveNorm",
        "A1",
        {
            "variant": "layer_norm",
            "eps": 1e-5,
            "affine": {"weight": "none"},
            "rounding": {"normalized": "io"},
            "modulation": {"operands": "scale_shift", "factor": "sigmoid"},
            "out_dtype": "promote",
        },
        768,
        (768, 384, "layer_norm"),
        stubs=("norm_cond", "to_gamma.0", "to_beta"),
        call=rfd4,
        state="norm",
        fused="layer_norm",
    ),
)
