"""What a norm cannot do it refuses in words, where silence would be a wrong result."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.inputs import case
from torch.autograd import forward_ad

ADD = make(residual="pre_add")
IN_PLACE = make(residual="pre_add", residual_in_place=True, backward=False)
SHAPE = (6, 72)


class Untouched(torch.autograd.Function):
    """A step that has no gradient for either of its inputs."""

    @staticmethod
    def forward(ctx, one, other):
        return one + other

    @staticmethod
    def backward(ctx, gradient):
        return None, None


def test_no_gradient_at_all_comes_back_as_none(device):
    inputs = case(ADD, SHAPE, torch.float32, device=device)
    x = inputs.x.clone().requires_grad_()
    y, total = build(ADD).rms_norm(x, inputs.weight, inputs.residual)
    Untouched.apply(y, total).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("backward", [True, False])
def test_forward_mode_is_refused_and_loses_no_tangent(backward, device):
    norm = make(backward=backward)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(inputs.x, torch.ones_like(inputs.x))
        with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
            build(norm).rms_norm(x, inputs.weight)


@pytest.mark.parametrize(
    "eps, error",
    [
        (1e39, ValueError),
        (1e-39, ValueError),
        (0, ValueError),
        (-1e-5, ValueError),
        (float("inf"), ValueError),
        (float("nan"), ValueError),
        (True, TypeError),
        ("1e-5", TypeError),
        (None, TypeError),
    ],
)
def test_an_eps_that_float32_does_not_hold_is_refused(eps, error, device):
    norm = make(eps="argument")
    inputs = case(norm, SHAPE, torch.float32, device=device)
    with pytest.raises(error, match=r"^eps: "):
        build(norm).rms_norm(inputs.x, inputs.weight, eps)
    with pytest.raises(error, match=r"^eps: "):
        build(norm).RMSNorm(72, eps)


def test_a_residual_that_overlaps_x_is_not_overwritten(device):
    memory = torch.randn(7, 72, device=device)
    before = memory.clone()
    weight = torch.ones(72, device=device)
    for x, residual in (
        (memory[:-1], memory[1:]),
        (memory[1:], memory[:-1]),
        (memory.view(-1)[8 : 8 + 432].view(SHAPE), memory[:-1]),
    ):
        with pytest.raises(ValueError, match=r"^residual: .*overlap with x"):
            build(IN_PLACE).rms_norm(x, weight, residual)
    assert torch.equal(memory, before)


def test_a_residual_beside_x_or_x_itself_is_overwritten(device):
    packed = torch.randn(6, 160, device=device)
    halves = torch.randn(12, 72, device=device)
    weight = torch.ones(72, device=device)
    for x, residual in (
        (packed[:, :72], packed[:, 80:152]),
        (packed[:, 80:152], packed[:, :72]),
        (halves[:6], halves[6:]),
        (halves[6:], halves[:6]),
        (halves[:6], halves[:6]),
    ):
        expected = x + residual
        _, total = build(IN_PLACE).rms_norm(x, weight, residual)
        assert total.data_ptr() == residual.data_ptr()
        assert torch.equal(total, expected)


def test_results_of_the_reference_are_contiguous_as_the_kernels_are(monkeypatch):
    module = build(ADD)
    monkeypatch.setattr(module, "_INTERPRETED", False)
    x = torch.randn(2, 8, 4, 72).transpose(1, 2)
    y, total = module.rms_norm(x, torch.ones(72), torch.randn(x.shape))
    assert y.is_contiguous()
    assert total.is_contiguous()


def test_a_parameter_of_the_module_is_an_int(device):
    for wrong in (72.0, "72", None, [72]):
        with pytest.raises(TypeError, match=r"^hidden_size: "):
            build(ADD).RMSNorm(wrong, device=device)
