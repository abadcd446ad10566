"""What a norm cannot do it refuses in words, where silence would be a wrong result."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.inputs import case
from torch.autograd import forward_ad

ADD = make(residual="pre_add")
IN_PLACE_FIELDS = {"residual": "pre_add", "residual_in_place": True, "backward": False}
IN_PLACE = make(**IN_PLACE_FIELDS)
LAYER = {"variant": "layer_norm", "bias": True, "save_stats": "always"}
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
        with pytest.raises(ValueError, match=r"^residual: .*apart from x, got overlap"):
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


@pytest.mark.parametrize("fields", [{}, {"residual": "pre_add"}, LAYER], ids=str)
def test_a_gradient_of_a_gradient_is_refused_on_every_way_to_it(fields, device):
    norm = make(**fields)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    function = getattr(build(norm), norm.name)

    def loss(x):
        made = function(*inputs.with_tensors(x=x).arguments())
        return (made[0] if isinstance(made, tuple) else made).sum()

    x = inputs.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
    assert gradient.requires_grad
    for second in (gradient.pow(2).sum() + x.sum(), gradient.sum()):
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(second, x, retain_graph=True)
    for transform in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            transform(loss, inputs.x, torch.ones_like(inputs.x))


@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_a_residual_that_another_input_is_read_from_is_not_overwritten(
    strategy, device
):
    norm = make(
        **{
            **IN_PLACE_FIELDS,
            "variant": "layer_norm",
            "bias": True,
            "strategy": strategy,
        }
    )
    memory = torch.randn(6, 72, device=device)
    x, ones = torch.randn(2, 72, device=device), torch.ones(72, device=device)
    function = build(norm).layer_norm
    for name, arguments in (
        ("x", (memory[0].expand(6, 72), ones, ones, memory)),
        ("weight", (x, memory[3], ones, memory[3:5])),
        ("bias", (x, ones, memory[4], memory[3:5])),
    ):
        with pytest.raises(ValueError, match=rf"^residual: .* apart from {name}"):
            function(*arguments)


def test_a_view_that_is_only_negated_on_paper_is_read_as_it_is(device):
    inputs = case(make(), SHAPE, torch.float32, device=device)
    x, weight = (torch._neg_view(t) for t in (inputs.x, inputs.weight))
    assert torch.equal(
        build(make()).rms_norm(x, weight),
        build(make()).rms_norm(x.clone(), weight.clone()),
    )


@pytest.mark.parametrize("layout", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_a_sparse_tensor_is_refused_by_name(layout, device):
    inputs = case(make(), SHAPE, torch.float32, device=device)
    with pytest.raises(TypeError, match=r"^x: expected a dense tensor"):
        build(make()).rms_norm(layout(inputs.x), inputs.weight)
    with pytest.raises(TypeError, match=r"^weight: expected a dense tensor"):
        build(make()).rms_norm(inputs.x, inputs.weight.to_sparse())


def test_a_row_of_zeros_has_finite_gradients_in_the_reference_too(device):
    norm = make(eps_placement="outside_sqrt", variant="layer_norm", bias=True)
    x = torch.zeros(3, 72, device=device, requires_grad=True)
    ones = torch.ones(72, device=device)
    build(norm).layer_norm_reference(x, ones, ones).square().sum().backward()
    assert x.grad.isfinite().all()


def test_a_dual_level_without_a_tangent_is_no_derivative(device):
    norm = make(backward=False)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    expected = build(norm).rms_norm(inputs.x, inputs.weight)
    with forward_ad.dual_level():
        assert torch.equal(build(norm).rms_norm(inputs.x, inputs.weight), expected)


def test_nothing_is_launched_where_the_residual_alone_wants_its_gradient(
    device, monkeypatch
):
    norm = make(residual="post_add")
    module = build(norm)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    residual = inputs.residual.clone().requires_grad_()
    y = module.rms_norm(inputs.x, inputs.weight, residual)
    monkeypatch.setattr(module, "_rms_norm_bwd_rows_kernel", None)
    y.sum().backward()
    assert torch.equal(residual.grad, torch.ones_like(residual))


def test_a_row_near_0_is_divided_by_its_root_in_the_reference_too():
    """Its squares are subnormal, 1e-42, with a spacing of 1.4e-45: 2 in 1000."""
    norm = make(eps_placement="outside_sqrt", eps=1e-25)
    y = build(norm).rms_norm_reference(torch.full((1, 72), 1e-21), torch.ones(72))
    torch.testing.assert_close(y, torch.ones_like(y), rtol=2e-3, atol=0)
