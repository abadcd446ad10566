"""Rows of every kind of value: large, tiny, constant, zero."""

from __future__ import annotations

import pytest
import torch
from support import eager
from support.build import build, make
from support.checks import check, run
from support.inputs import case, gradient_like
from support.intervals import TINY

#: numpy's, in the interpreter, of what float32 does on purpose here
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
ROWS, LENGTH = 9, 127  # a ragged end, so that what is masked must not count

NORMS = {
    "rms_norm": {"variant": "rms_norm"},
    "layer_norm": {"variant": "layer_norm", "bias": True},
    "outside_sqrt": {"variant": "layer_norm", "eps_placement": "outside_sqrt"},
    "rms_outside_sqrt": {"variant": "rms_norm", "eps_placement": "outside_sqrt"},
}


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


VALUES = {
    "randn": lambda shape: randn(*shape),
    "around 2000": lambda shape: randn(*shape) + 2000,
    "around -1e4": lambda shape: randn(*shape) * 0.1 - 1e4,
    "constant": lambda shape: torch.full(shape, 3.1),
    "zero": lambda shape: torch.zeros(shape),
    "negative zero": lambda shape: -torch.zeros(shape),
    "subnormal": lambda shape: randn(*shape).sign() * 1e-40,
    "tiny": lambda shape: randn(*shape) * 1e-18,
    "large": lambda shape: randn(*shape) * 1e15,
    "300": lambda shape: randn(*shape).sign() * 300,
    "1000": lambda shape: randn(*shape).sign() * 1000,
    "65504": lambda shape: randn(*shape).sign() * 65504,
    "one spike": lambda shape: torch.eye(*shape) * 4e4 + 0.01,
}


@pytest.mark.parametrize("io", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("norm", NORMS)
def test_values_of_a_kind(norm, kind, io, device):
    if io == F16 and kind in ("large",):
        io = F32
    spec = make(**NORMS[norm], strategy="row", eps=1e-6)
    inputs = case(spec, (ROWS, LENGTH), io, device=device)
    inputs.x.copy_(VALUES[kind]((ROWS, LENGTH)))
    check(build(spec), spec, inputs, kind)


@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
@pytest.mark.parametrize("mean", [0.0, 1e2, 1e3, 1e4, 4e4, 8e4])
@pytest.mark.parametrize("length", [4, 16, 3584])
def test_the_variance_is_taken_about_the_mean(length, mean, strategy, device):
    # one-pass E[x^2] - E[x]^2 loses all of it, or goes negative: NaN
    spec = make(variant="layer_norm", bias=True, strategy=strategy)
    inputs = case(spec, (3, length), F32, device=device)
    inputs.x.copy_(mean + torch.arange(length) * (1.0 if length == 4 else 1e-3))
    check(build(spec), spec, inputs, f"mean {mean}")


@pytest.mark.parametrize("strategy", ["row", "loop"])
def test_small_deviations_of_a_long_row_keep_their_scale(strategy, device):
    spec = make(variant="layer_norm", save_stats="always", strategy=strategy)
    inputs = case(spec, (2, 16384), F32, device=device)
    inputs.x.copy_(randn(2, 16384) * 0.01 + 100)
    rstd = check(build(spec), spec, inputs).outputs["rstd"]
    exact = (inputs.x.double().var(-1, correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("eps", [1e-12, 1e-9])
@pytest.mark.parametrize("value", [0.0, 3.0, 1e-10])
@pytest.mark.parametrize("norm", NORMS)
def test_an_eps_that_is_zero_in_float16_is_not_rounded(norm, value, eps, device):
    spec = make(**NORMS[norm], eps=eps, save_stats="always")
    inputs = case(spec, (3, 1600), F16, device=device)
    inputs.x.fill_(value)
    done = check(build(spec), spec, inputs)
    for name, gradient in done.gradients.items():
        assert not gradient.isnan().any(), name
    assert not done.outputs["y"].isnan().any()


@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("strategy", ["auto", "row", "rows", "loop"])
def test_a_layer_norm_over_one_column_is_its_bias(strategy, io, device):
    spec = make(variant="layer_norm", bias=True, strategy=strategy)
    inputs = case(spec, (7, 1), io, device=device)
    inputs.x.copy_(torch.tensor([[1e4], [-3.0], [0.1], [7.0], [0.0], [1e-3], [333.3]]))
    done = check(build(spec), spec, inputs)
    assert torch.equal(done.outputs["y"], inputs.bias.expand(7, 1))
    assert not done.gradients["weight"].any()
    assert not done.gradients["x"].any()


def test_a_multiplication_by_the_inverse_root_not_a_division(device):
    spec = make(weight="none", eps=1e-6)
    x = torch.full((1, 8), 2.0, device=device)
    torch.testing.assert_close(
        build(spec).rms_norm(x), torch.ones_like(x), rtol=3e-7, atol=0
    )


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_where_float32_overflows_the_result_is_that_of_torch(kind, strategy, device):
    spec = make(**NORMS[kind], strategy=strategy)
    inputs = case(spec, (3, LENGTH), F32, device=device)
    for scale in (1e19, 1e25, 1e30):
        inputs.x.copy_(randn(3, LENGTH) * scale)
        dy = gradient_like(inputs.x)
        done = run(build(spec), spec, inputs, {"y": dy})
        expected = getattr(eager, kind)(*inputs.arguments(), 1e-5)
        torch.testing.assert_close(done.outputs["y"], expected, rtol=1e-5, atol=TINY)
        assert not done.gradients["x"].isnan().any()


@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_value_that_is_not_finite_stays_in_its_row(bad, strategy, kind, io, device):
    spec = make(**NORMS[kind], strategy=strategy)
    clean = case(spec, (8, LENGTH), io, device=device)
    spoilt = clean.with_tensors(x=clean.x.clone())
    spoilt.x[3, 5] = bad
    dy = gradient_like(clean.x)
    expected, done = (run(build(spec), spec, i, {"y": dy}) for i in (clean, spoilt))
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(done.outputs["y"][others], expected.outputs["y"][others])
    assert torch.equal(done.gradients["x"][others], expected.gradients["x"][others])
    assert done.outputs["y"][3, 5].isnan()
    if kind == "layer_norm":
        assert torch.equal(done.gradients["bias"], expected.gradients["bias"])

    leaf = spoilt.x.clone().requires_grad_()
    weight = spoilt.weight.clone().requires_grad_()
    rest = [t for n, t in spoilt.tensors().items() if n not in ("x", "weight")]
    y = getattr(eager, kind)(leaf, weight, *rest, 1e-5)
    y.backward(dy)
    assert torch.equal(done.outputs["y"].isnan(), y.isnan())
    assert torch.equal(done.gradients["weight"].isnan(), weight.grad.isnan())
