"""The residual stream: what is rounded, stored, normalized and handed back."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import run
from support.gradients import gradients
from support.inputs import case, gradient_like
from support.oracle import Oracle

LOW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("io", LOW, ids=str)
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_the_sum_is_rounded_to_the_nearest(strategy, io, device):
    norm = make(residual="pre_add", strategy=strategy)
    inputs = case(norm, (16, 1000), io, device=device)
    inputs.x.copy_(torch.randn(16, 1000) * 3)
    inputs.residual.copy_(torch.randn(16, 1000) * 3)
    total = build(norm).rms_norm(*inputs.arguments())[1]
    wide = inputs.x.float() + inputs.residual.float()
    assert torch.equal(total, wide.to(io))
    signed = (total.float() - wide) * wide.sign()
    assert abs(signed.mean()) < 0.02 * (total.float() - wide).abs().max()


@pytest.mark.parametrize("io", LOW, ids=str)
@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_fused_equals_unfused_bit_for_bit(strategy, variant, io, device):
    fused = make(name="fused", variant=variant, residual="pre_add", strategy=strategy)
    plain = make(name="plain", variant=variant, strategy=strategy)
    module = build(fused, plain)
    inputs = case(fused, (9, 127), io, device=device)  # |residual| >> |x|
    y, total = module.fused(*inputs.arguments())
    assert torch.equal(y, module.plain(total, inputs.weight))


def test_post_add_of_a_rounded_norm_equals_the_norm_and_an_addition(device):
    for io in LOW:
        fused = make(name="fused", residual="post_add")
        module = build(fused, make(name="plain"))
        inputs = case(fused, (9, 127), io, device=device)
        expected = inputs.residual + module.plain(inputs.x, inputs.weight)
        assert torch.equal(module.fused(*inputs.arguments()), expected)


@pytest.mark.parametrize("absent", ["y", "residual_sum"])
@pytest.mark.parametrize("residual_sum", ["rounded", "float32"])
@pytest.mark.parametrize("residual_dtype", ["same", "float32"])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_either_gradient_may_be_absent(
    strategy, residual_dtype, residual_sum, absent, device
):
    norm = make(
        variant="layer_norm",
        bias=True,
        residual="pre_add",
        residual_sum=residual_sum,
        residual_dtype=residual_dtype,
        strategy=strategy,
    )
    inputs = case(
        norm, (71 if strategy == "rows" else 9, 72), torch.float16, device=device
    )
    oracle = Oracle(norm, inputs)
    name = {"y": "residual_sum", "residual_sum": "y"}[absent]
    like = torch.empty_like(inputs.x, dtype=oracle.output_dtype(name))
    given = {name: gradient_like(like)}
    done = run(build(norm), norm, inputs, given)
    wanted = gradients(oracle, given)
    for operand, expected in wanted.items():
        gradient = done.gradients[operand]
        if gradient is None:  # the graph knows that it is zero
            assert absent == "y" and operand in ("weight", "bias")
            continue
        expected.check(gradient, f"d_{operand} without that of {absent}")


@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_the_residual_gradient_adds_what_comes_through_the_norm(strategy, device):
    norm = make(residual="pre_add", strategy=strategy)
    inputs = case(norm, (9, 72), torch.float32, device=device)
    d_sum = gradient_like(inputs.x, seed=5)
    dy = gradient_like(inputs.x, seed=6)
    module = build(norm)
    both = run(module, norm, inputs, {"y": dy, "residual_sum": d_sum}).gradients
    through = run(module, norm, inputs, {"y": dy}).gradients
    torch.testing.assert_close(both["residual"], d_sum + through["residual"])
    assert torch.equal(both["residual"], both["x"])
    direct = run(module, norm, inputs, {"residual_sum": d_sum}).gradients
    assert torch.equal(direct["x"], d_sum)


def test_a_float32_residual_keeps_its_gradient_in_float32(device):
    norm = make(residual="pre_add", residual_dtype="float32")
    inputs = case(norm, (9, 72), torch.bfloat16, device=device)
    found = run(
        build(norm),
        norm,
        inputs,
        {"y": gradient_like(inputs.x), "residual_sum": gradient_like(inputs.residual)},
    ).gradients
    assert found["x"].dtype == torch.bfloat16
    assert found["residual"].dtype == torch.float32
    assert torch.equal(found["residual"].bfloat16(), found["x"])
    assert not torch.equal(found["residual"], found["x"].float())


def test_a_gradient_that_two_branches_share_is_not_written(device):
    norm = make(residual="post_add")
    inputs = case(norm, (9, 72), torch.float32, device=device)
    x = inputs.x.clone().requires_grad_()
    y = build(norm).rms_norm(x, inputs.weight, x)
    dy = gradient_like(y)
    kept = dy.clone()
    y.backward(dy)
    assert torch.equal(dy, kept)
    through = run(build(norm), norm, inputs.with_tensors(residual=inputs.x), {"y": dy})
    torch.testing.assert_close(x.grad, dy + through.gradients["x"])
