"""The oracle is held against a float32 evaluation of the contract, right and wrong."""

from __future__ import annotations

import pytest
import torch
from support.activations import ACTIVATIONS, EAGER
from support.build import make
from support.checks import upstream_for
from support.fields import LENGTH, accepts, single_values
from support.gradients import exact_gradients, gradients
from support.inputs import case, gradient_like
from support.intervals import Interval, U, to_dtype
from support.oracle import Oracle
from support.places import shape_for

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
    width = oracle.bounds["x_hat"].payload.value.width / 2
    scale = oracle.bounds["x_hat"].payload.value.magnitude.amax(-1, keepdim=True)
    assert (width / scale).max() < 4e-6


@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
def test_its_gradients_are_those_of_the_formulas(variant):
    norm = make(variant=variant, bias=True)
    inputs = case(norm, (31, 257), F32)
    dy = gradient_like(inputs.x)
    tensors = inputs.map(lambda t: t.detach().requires_grad_()).tensors()
    y = normalized(tensors["x"], variant) * tensors["weight"] + tensors["bias"]
    y.backward(dy)
    for name, expected in gradients(Oracle(norm, inputs), {"y": dy}).items():
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
    expected = gradients(Oracle(norm, inputs), {"y": dy})["x"]
    assert not verdict(expected, dx.to(io))


@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
def test_it_notices_a_row_left_out_of_a_column_gradient(io):
    norm = make(bias=True)
    inputs = case(norm, (301, 64), io)
    dy = gradient_like(inputs.x)
    expected = gradients(Oracle(norm, inputs), {"y": dy})
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


@pytest.mark.parametrize("io", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", dict(single_values()))
def test_its_bounds_hold_what_autograd_makes(name, io):
    """Intervals walked back by hand, and autograd through the same contract."""
    norm = dict(single_values())[name]
    if not accepts(norm, io):
        io = getattr(torch, norm.dtype[0])
    inputs = case(norm, shape_for(norm, 7, LENGTH), io)
    oracle = Oracle(norm, inputs)
    for output in oracle.results:
        value = oracle.exact[output]
        exact = to_dtype(value.payload.detach(), value.dtype)
        bounds = oracle.bounds[output].payload.value
        # what stays in float64 has none of the roundings to float32
        near = 8 * U * bounds.magnitude.amax() if value.dtype == F32 else 0.0
        assert (exact >= bounds.low - near).all(), output
        assert (exact <= bounds.high + near).all(), output
    upstream = upstream_for(norm, oracle)
    exact = exact_gradients(oracle, upstream)
    for operand, expected in gradients(oracle, upstream).items():
        own = exact[operand]
        if oracle.spaces[operand] == "element":
            own = oracle.places.gathered(own)
        expected.check(own.reshape(expected.shape).to(expected.dtype), operand)


@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_torch_keeps_to_the_bounds_of_an_activation(name, io):
    z = torch.linspace(-12, 12, 4801).to(io)
    bounds = ACTIVATIONS[name].values(Interval.around(z.double())).computed()
    assert bounds.round(io).contains(EAGER[name](z.float()).to(io)).all()
    leaf = z.float().requires_grad_()
    EAGER[name](leaf).sum().backward()
    slopes = ACTIVATIONS[name].slopes(Interval.around(z.double())).computed()
    assert slopes.round(F32).contains(leaf.grad).all()
    width = bounds.width / (1 + z.double().abs())
    assert width.max() < 4e-6, "the bounds say nothing"


@pytest.mark.parametrize("io", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", dict(single_values()))
def test_its_bounds_are_narrow(name, io):
    """What is allowed beside the exact gradient is small against its row or column."""
    norm = dict(single_values())[name]
    if not accepts(norm, io) or not norm.backward:
        return
    oracle = Oracle(norm, case(norm, shape_for(norm, 7, LENGTH), io))
    upstream = upstream_for(norm, oracle)
    low = norm.statistics.precision != "float32" or norm.rounding.rstd == "io"
    for operand, expected in gradients(oracle, upstream).items():
        size = expected.bounds.magnitude
        width = expected.bounds.width.mean() / size.mean()
        exact = {F32, *(t.dtype for t in oracle.inputs.tensors().values())} == {F32}
        limit = 5e-5 if exact else 0.2 if low else 4e-3
        assert width < limit, f"{operand}: {width:.1e}"
