"""Given the kernel's own mean and rstd, its roundings are torch's bit for bit.

Where the product with the weight stays unrounded in float32, a GPU may contract
x_hat * w + b into one fused multiply-add: both results are accepted there.
"""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import call
from support.inputs import case

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
PAIRS = [
    (F32, F32),
    (BF16, BF16),
    (F16, F16),
    (BF16, F32),
    (F16, F32),
    (F32, BF16),
    (BF16, F16),
]

EPILOGUES = {
    "llama": ({"normalized": "io"}, lambda h, w, io: (w * h.to(io)).to(io)),
    "llama promoted": (
        {"normalized": "io", "out_dtype": "promote"},
        lambda h, w, io: w * h.to(io),
    ),
    "gemma": ({"weight_offset": 1.0}, lambda h, w, io: (h * (1.0 + w.float())).to(io)),
    "gemma in the weight's dtype": (
        {"weight_offset": 1.0, "offset_precision": "param", "normalized": "io"},
        lambda h, w, io: (h.to(io) * (1.0 + w)).to(io),
    ),
    "t5": (
        {"normalized": "weight", "out_dtype": "promote"},
        lambda h, w, io: w * h.to(w.dtype),
    ),
    "olmo2": ({}, lambda h, w, io: (w * h).to(io)),
    "affine io, float32 out": (
        {"affine_rounding": "io", "out_dtype": "float32"},
        lambda h, w, io: (w * h).to(io).to(F32),
    ),
    "bfloat16 out": ({"out_dtype": "bfloat16"}, lambda h, w, io: (w * h).to(BF16)),
}


def ids(pair):
    return "_".join(str(d).removeprefix("torch.") for d in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_the_roundings_of(strategy, epilogue, pair, device):
    fields, expression = EPILOGUES[epilogue]
    norm = make(**fields, save_stats="always", strategy=strategy)
    io, parameters = pair
    inputs = case(norm, (13, 257), io, parameters=parameters, device=device)
    out = call(build(norm), norm, inputs)
    x_hat = inputs.x.float() * out["rstd"][:, None]
    expected = expression(x_hat, inputs.weight, io)
    assert out["y"].dtype == expected.dtype
    assert torch.equal(out["y"], expected)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
@pytest.mark.parametrize("normalized", ["none", "io"])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_the_roundings_of_a_layer_norm(strategy, normalized, pair, device):
    norm = make(
        variant="layer_norm",
        bias=True,
        normalized=normalized,
        save_stats="always",
        strategy=strategy,
    )
    io, parameters = pair
    inputs = case(norm, (13, 257), io, parameters=parameters, device=device)
    out = call(build(norm), norm, inputs)
    mean, rstd = out["mean"][:, None], out["rstd"][:, None]
    x_hat = (inputs.x.float() - mean) * rstd
    if normalized == "io":
        expected = (x_hat.to(io) * inputs.weight + inputs.bias).to(io)
        assert_either(out["y"], expected, fused(x_hat.to(io), inputs).to(io), device)
    else:
        expected = (x_hat * inputs.weight + inputs.bias).to(io)
        assert_either(out["y"], expected, fused(x_hat, inputs).to(io), device)


def fused(x_hat, inputs):
    """x_hat * w + b rounded once, to float32."""
    wide = x_hat.double() * inputs.weight.double() + inputs.bias.double()
    return wide.to(F32)


def assert_either(actual, expected, contracted, device):
    same = actual == expected
    if device != "cpu":
        same |= actual == contracted
    assert same.all(), f"{int((~same).sum())} of {same.numel()} differ"


@pytest.mark.parametrize("io", [BF16, F16], ids=str)
@pytest.mark.parametrize("residual_sum", ["rounded", "float32"])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_the_roundings_around_a_residual(strategy, residual_sum, io, device):
    fields = {"residual_sum": residual_sum, "strategy": strategy}
    norm = make(**fields, residual="pre_add", normalized="io", save_stats="always")
    inputs = case(norm, (13, 257), io, device=device)
    out = call(build(norm), norm, inputs)
    total = inputs.x.float() + inputs.residual.float()
    assert torch.equal(out["residual_sum"], total.to(io))
    if residual_sum == "rounded":
        total = total.to(io).float()
    x_hat = (total * out["rstd"][:, None]).to(io)
    assert torch.equal(out["y"], inputs.weight * x_hat)

    norm = make(**fields, residual="post_add", save_stats="always")
    out = call(build(norm), norm, inputs)
    normed = inputs.x.float() * out["rstd"][:, None] * inputs.weight.float()
    if residual_sum == "rounded":
        assert torch.equal(out["y"], inputs.residual + normed.to(io))
    elif device == "cpu":
        assert torch.equal(out["y"], (inputs.residual.float() + normed).to(io))
