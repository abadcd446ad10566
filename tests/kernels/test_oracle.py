"""The oracle is held against a float32 evaluation of the contract, right and wrong."""

from __future__ import annotations

import pytest
import torch
from support.build import make
from support.gradients import gradients
from support.inputs import case, gradient_like
from support.oracle import Oracle

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
LOW = [(BF16, BF16), (F16, F16), (BF16, F32), (F16, F32), (F32, BF16), (F32, F32)]


def normalized(x, variant="rms_norm", eps=1e-5):
    wide = x.float()
    if variant == "layer_norm":
        wide = wide - wide.mean(-1, keepdim=True)
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()


def verdict(expected, actual):
    try:
        expected.check(actual, "value")
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("io, parameters", LOW, ids=str)
def test_it_tells_every_order_of_rounding_apart(io, parameters):
    """Each way of rounding passes as itself, and as another only where they agree."""
    fields = {
        "io": {"normalized": "io"},
        "weight": {"normalized": "weight"},
        "none": {"normalized": "none"},
        "offset": {"weight_offset": 1.0, "offset_precision": "param"},
        "wide offset": {"weight_offset": 1.0},
    }
    norms = {name: make(**f) for name, f in fields.items()}
    inputs = case(norms["io"], (31, 257), io, parameters=parameters)
    h, w = normalized(inputs.x), inputs.weight
    values = {
        "io": w * h.to(io),
        "weight": w * h.to(w.dtype),
        "none": w * h,
        "offset": (1.0 + w) * h,
        "wide offset": (1.0 + w.float()) * h,
    }
    values = {name: value.to(io) for name, value in values.items()}
    for name, norm in norms.items():
        expected = Oracle(norm, inputs).outputs()["y"]
        assert verdict(expected, values[name]), name
        for other, value in values.items():
            near = (value.float() - values[name].float()).abs() <= 2e-6 * value.abs()
            if not near.all():
                assert not verdict(expected, value), f"{other} passes as {name}"


@pytest.mark.parametrize("io", [BF16, F16], ids=str)
def test_most_values_are_held_bit_for_bit(io):
    norm = make(variant="layer_norm", bias=True, normalized="io")
    expected = Oracle(norm, case(norm, (31, 257), io)).outputs()["y"]
    single = expected.bounds.low == expected.bounds.high
    assert single.double().mean() > 0.99


def test_a_float32_value_may_be_off_by_few_ulps():
    norm = make(variant="layer_norm", bias=True)
    inputs = case(norm, (31, 257), F32)
    oracle = Oracle(norm, inputs)
    width = oracle.bounds["x_hat"].width / 2
    scale = oracle.bounds["x_hat"].magnitude.amax(-1, keepdim=True)
    assert (width / scale).max() < 4e-6


@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
def test_its_gradients_are_those_of_the_formulas(variant):
    norm = make(variant=variant, bias=True)
    inputs = case(norm, (31, 257), F32)
    dy = gradient_like(inputs.x)
    tensors = inputs.map(lambda t: t.detach().requires_grad_()).tensors()
    y = normalized(tensors["x"], variant) * tensors["weight"] + tensors["bias"]
    y.backward(dy)
    for name, expected in gradients(Oracle(norm, inputs), dy).items():
        expected.check(tensors[name].grad, name)


@pytest.mark.parametrize("term", ["mean", "projection", "weight", "factor"])
@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
def test_it_notices_a_term_left_out_of_the_adjoint(io, term):
    norm = make(variant="layer_norm", eps_placement="outside_sqrt", eps=0.01)
    inputs = case(norm, (31, 257), io)
    dy = gradient_like(inputs.x)
    wide = inputs.x.double()
    centered = wide - wide.mean(-1, keepdim=True)
    root = centered.square().mean(-1, keepdim=True).sqrt()
    eps = float(torch.tensor(0.01))
    x_hat = centered / (root + eps)
    dx_hat = dy.double() * (1 if term == "weight" else inputs.weight.double())
    mean = 0 if term == "mean" else dx_hat.mean(-1, keepdim=True)
    projection = (dx_hat * x_hat).mean(-1, keepdim=True)
    if term != "factor":
        projection = projection * (root + eps) / root
    if term == "projection":
        projection = 0
    dx = (dx_hat - mean - x_hat * projection) / (root + eps)
    expected = gradients(Oracle(norm, inputs), dy)["x"]
    assert not verdict(expected, dx.to(io))


@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
def test_it_notices_a_row_left_out_of_a_column_gradient(io):
    norm = make(bias=True)
    inputs = case(norm, (301, 64), io)
    dy = gradient_like(inputs.x)
    expected = gradients(Oracle(norm, inputs), dy)
    terms = {"weight": dy.double() * normalized(inputs.x.double()), "bias": dy.double()}
    for name, rows in terms.items():
        assert verdict(expected[name], rows.sum(0).to(io)), name
        assert not verdict(expected[name], rows[1:].sum(0).to(io)), name


def test_it_notices_nan_shape_and_dtype():
    norm = make()
    inputs = case(norm, (3, 64), BF16)
    expected = Oracle(norm, inputs).outputs()["y"]
    right = (normalized(inputs.x) * inputs.weight).to(BF16)
    assert verdict(expected, right)
    spoilt = right.clone()
    spoilt[2, 5] = float("nan")
    assert not verdict(expected, spoilt)
    assert not verdict(expected, right.float())
    assert not verdict(expected, right[None])
