"""What training asks of a norm: gradients for what wants them, and nothing touched."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from support.build import build, layer_class, make
from support.checks import call, leaves, output_names, run, upstream_for
from support.gradients import gradients
from support.inputs import case, gradient_like
from support.oracle import Oracle

FULL = make(variant="layer_norm", bias=True, residual="pre_add", save_stats="always")
MIXED = make(residual="pre_add", residual_dtype="float32", parameters="float32")
PLAIN = make()
SHAPE = (9, 72)


def subsets(names):
    sizes = range(len(names) + 1)
    return [s for size in sizes for s in itertools.combinations(names, size)]


@pytest.mark.parametrize(
    "wanted", subsets(("x", "weight", "bias", "residual")), ids="+".join
)
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_only_what_requires_a_gradient_gets_one(strategy, wanted, device):
    norm = FULL.model_copy(update={"strategy": strategy})
    check_wanted(norm, wanted, torch.bfloat16, device)


@pytest.mark.parametrize("wanted", subsets(("x", "weight", "residual")), ids="+".join)
@pytest.mark.parametrize("residual", ["pre_add", "post_add"])
def test_gradients_have_the_dtype_of_their_tensor(residual, wanted, device):
    norm = MIXED.model_copy(update={"residual": residual})
    check_wanted(norm, wanted, torch.float16, device)


def check_wanted(norm, wanted, io, device):
    inputs = case(norm, SHAPE, io, device=device)
    oracle = Oracle(norm, inputs)
    upstream = upstream_for(norm, oracle)
    outputs = call(build(norm), norm, leaves(inputs, wanted))
    for name in ("y", "residual_sum"):
        if name in outputs and name == "y":
            assert outputs[name].requires_grad == bool(wanted)
    for name in set(outputs) & {"mean", "rstd"}:
        assert not outputs[name].requires_grad
    if not wanted:
        return
    if not {"x", "residual"} & set(wanted):
        upstream.pop("residual_sum", None)
    done = run(build(norm), norm, inputs, upstream, requires_grad=wanted)
    expected = gradients(oracle, upstream)
    for name, gradient in done.gradients.items():
        if name in wanted:
            expected[name].check(gradient, f"d_{name}")
        else:
            assert gradient is None, name


@pytest.mark.parametrize(
    "loss",
    [
        lambda y: y.sum(),
        lambda y: y.mean(),
        lambda y: y[..., :1].sum(),
        lambda y: y.transpose(0, 1).sum(0).sum(),
        lambda y: (y * torch.ones_like(y)).sum(),
    ],
    ids=["sum", "mean", "first_column", "transposed_sum", "contiguous"],
)
def test_gradients_that_autograd_makes_of_a_loss(loss, device):
    inputs = case(PLAIN, (2, 8, 72), torch.float32, device=device)
    oracle = Oracle(PLAIN, inputs)
    leafs = leaves(inputs)
    loss(build(PLAIN).rms_norm(*leafs.arguments())).backward()
    y = torch.zeros_like(inputs.x).requires_grad_()
    loss(y).backward()
    for name, expected in gradients(oracle, {"y": y.grad}).items():
        expected.check(leafs.tensors()[name].grad, f"d_{name}")


def test_backward_twice_through_a_kept_graph_gives_the_same(device):
    inputs = leaves(case(FULL, SHAPE, torch.float32, device=device))
    y, total, *_ = build(FULL).layer_norm(*inputs.arguments())
    upstream = [gradient_like(y), gradient_like(total)]
    tensors = list(inputs.tensors().values())
    first, second = (
        torch.autograd.grad([y, total], tensors, upstream, retain_graph=True)
        for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["x", "weight"])
def test_an_input_changed_before_backward_is_noticed(name, device):
    inputs = leaves(case(PLAIN, SHAPE, torch.float32, device=device))
    y = build(PLAIN).rms_norm(*inputs.arguments())
    with torch.no_grad():
        inputs.tensors()[name].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_returned_sum_changed_before_backward_is_noticed(device):
    norm = make(residual="pre_add")
    inputs = leaves(case(norm, SHAPE, torch.float32, device=device))
    y, total = build(norm).rms_norm(*inputs.arguments())
    with torch.no_grad():
        total.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_in_place_operation_on_the_result_is_differentiated(device):
    inputs = leaves(case(PLAIN, SHAPE, torch.float32, device=device))
    y = build(PLAIN).rms_norm(*inputs.arguments())
    dy = gradient_like(y.detach())
    y.mul_(2).backward(dy)
    expected = gradients(Oracle(PLAIN, inputs.map(torch.Tensor.detach)), {"y": 2 * dy})
    expected["x"].check(inputs.x.grad, "dx")


@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_gradients_are_bitwise_repeatable(strategy, device):
    norm = FULL.model_copy(update={"strategy": strategy})
    inputs = case(norm, (71, 72), torch.bfloat16, device=device)
    upstream = upstream_for(norm, Oracle(norm, inputs))
    runs = [run(build(norm), norm, inputs, upstream) for _ in range(3)]
    for name, gradient in runs[0].gradients.items():
        assert all(torch.equal(gradient, again.gradients[name]) for again in runs[1:])


def test_a_second_derivative_is_right_or_refused(device):
    inputs = leaves(case(PLAIN, (3, 8), torch.float32, device=device))
    y = build(PLAIN).rms_norm(*inputs.arguments())
    try:
        (first,) = torch.autograd.grad(y.square().sum(), [inputs.x], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), [inputs.x])
    except RuntimeError as error:
        assert "differentia" in str(error) or "does not require grad" in str(error)
        return
    leaf = inputs.x.detach().double().requires_grad_()
    wide = inputs.weight.detach().double()
    y64 = wide * leaf * (leaf.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    (first,) = torch.autograd.grad(y64.square().sum(), [leaf], create_graph=True)
    (expected,) = torch.autograd.grad(first.square().sum(), [leaf])
    torch.testing.assert_close(second.double(), expected, rtol=1e-4, atol=1e-5)


def test_what_needs_no_gradient_builds_no_graph(device):
    inputs = case(PLAIN, SHAPE, torch.float32, device=device)
    assert build(PLAIN).rms_norm(*inputs.arguments()).grad_fn is None
    with torch.no_grad():
        y = build(PLAIN).rms_norm(*leaves(inputs).arguments())
    assert not y.requires_grad
    with torch.inference_mode():
        again = build(PLAIN).rms_norm(*inputs.arguments())
    assert torch.equal(y, again)


def test_a_norm_without_backward_refuses_to_be_differentiated(device):
    norm = make(backward=False)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    with torch.no_grad():
        kept = build(norm).rms_norm(*leaves(inputs).arguments())
    assert torch.equal(kept, build(norm).rms_norm(*inputs.arguments()))
    try:
        y = build(norm).rms_norm(*leaves(inputs).arguments())
    except (RuntimeError, ValueError) as error:
        assert "backward" in str(error) or "grad" in str(error)
        return
    assert not y.requires_grad


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_norm_has_the_same_gradients(use_reentrant, device):
    inputs = case(PLAIN, SHAPE, torch.float32, device=device)
    dy = gradient_like(inputs.x)
    plain = run(build(PLAIN), PLAIN, inputs, {"y": dy}).gradients
    leafs = leaves(inputs)
    y = torch.utils.checkpoint.checkpoint(
        build(PLAIN).rms_norm, *leafs.arguments(), use_reentrant=use_reentrant
    )
    y.backward(dy)
    assert torch.equal(leafs.x.grad, plain["x"])
    assert torch.equal(leafs.weight.grad, plain["weight"])


@pytest.mark.parametrize(
    "fields", [{}, {"weight_offset": 1.0}, {"variant": "layer_norm"}]
)
def test_one_step_of_an_optimiser_changes_every_parameter(fields, device):
    norm = make(**fields, bias=True)
    layer = layer_class(build(norm), norm)(72, device=device)
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    assert set(before) == {"weight", "bias"}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = case(norm, (4, 72), torch.float32, device=device).x
    (layer(x) * gradient_like(x)).sum().backward()
    optimizer.step()
    for name, parameter in layer.named_parameters():
        assert (parameter != before[name]).all(), name


@pytest.mark.parametrize("residual", ["pre_add", "post_add"])
def test_the_gradients_of_leaves_do_not_share_memory(residual, device):
    norm = make(residual=residual)
    inputs = leaves(case(norm, SHAPE, torch.float32, device=device))
    y = call(build(norm), norm, inputs)["y"]
    dy = gradient_like(y.detach())
    y.backward(dy)
    kept = inputs.residual.grad.clone()
    inputs.x.grad.zero_()
    dy.zero_()
    assert torch.equal(inputs.residual.grad, kept)


@pytest.mark.parametrize("residual", ["pre_add", "post_add"])
def test_one_tensor_may_be_several_operands(residual, device):
    norm = make(residual=residual, bias=True)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    inputs = inputs.with_tensors(residual=inputs.x, bias=inputs.weight)
    x, w = (t.detach().clone().requires_grad_() for t in (inputs.x, inputs.weight))
    y = call(build(norm), norm, inputs.with_tensors(x=x, residual=x, weight=w, bias=w))
    dy = gradient_like(inputs.x)
    y["y"].backward(dy)
    apart = run(build(norm), norm, inputs, {"y": dy}).gradients
    torch.testing.assert_close(x.grad, apart["x"] + apart["residual"])
    torch.testing.assert_close(w.grad, apart["weight"] + apart["bias"])


@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_a_call_that_needs_a_gradient_gives_the_same_bits(strategy, device):
    norm = FULL.model_copy(update={"strategy": strategy})
    inputs = case(norm, SHAPE, torch.bfloat16, device=device)
    plain = call(build(norm), norm, inputs)
    for name, output in call(build(norm), norm, leaves(inputs)).items():
        assert torch.equal(output, plain[name]), name


def test_a_residual_overwritten_in_place_is_seen_by_autograd(device):
    norm = make(residual="pre_add", residual_in_place=True, backward=False)
    inputs = case(norm, SHAPE, torch.float32, device=device)
    factor = torch.ones(72, device=device, requires_grad=True)
    z = factor * inputs.residual  # keeps the residual for its own backward
    build(norm).rms_norm(*inputs.arguments())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_autocast_does_not_change_dtypes(device):
    inputs = case(PLAIN, SHAPE, torch.bfloat16, device=device, parameters=torch.float32)
    plain = build(PLAIN).rms_norm(*inputs.arguments())
    with torch.autocast(device, torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        same = build(PLAIN).rms_norm(*inputs.arguments())
        wide = build(PLAIN).rms_norm(inputs.x.float(), inputs.weight)
    assert torch.equal(plain, same)
    assert wide.dtype == torch.float32


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_a_functional_transform_is_right_or_refused(transform, device):
    inputs = case(PLAIN, (3, 72), torch.float32, device=device)
    norm = build(PLAIN).rms_norm

    def loss(x):
        return norm(x, inputs.weight).sum()

    try:
        if transform == "grad":
            got = torch.func.grad(loss)(inputs.x)
            upstream = {"y": torch.ones_like(inputs.x)}
            expected = gradients(Oracle(PLAIN, inputs), upstream)["x"]
            expected.check(got, "torch.func.grad")
        elif transform == "vmap":
            got = torch.vmap(lambda x: norm(x, inputs.weight))(inputs.x)
            assert torch.equal(got, norm(inputs.x, inputs.weight))
        else:
            torch.func.jvp(loss, (inputs.x,), (inputs.x,))
            raise AssertionError("jvp gave a result: test it")
    except (RuntimeError, NotImplementedError) as error:
        assert str(error)


def test_the_outputs_of_a_call_are_those_of_the_spec(device):
    inputs = case(FULL, SHAPE, torch.float32, device=device)
    names = output_names(FULL)
    assert names == ["y", "residual_sum", "mean", "rstd"]
    outputs = call(build(FULL), FULL, inputs)
    assert outputs["mean"].shape == outputs["rstd"].shape == SHAPE[:-1]
