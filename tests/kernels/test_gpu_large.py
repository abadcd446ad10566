"""Sizes that only a GPU runs: offsets beyond int32, grids beyond 65535, batches."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import check, check_spec, run, upstream_for
from support.inputs import case
from support.oracle import Oracle

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory):
    """One of these at a time, whatever the number of workers: they fill the memory."""
    import fcntl

    lock = tmp_path_factory.getbasetemp().parent / "normgen-large.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        torch.cuda.empty_cache()


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STRATEGIES = ("row", "rows", "loop")


def last_row_alone(norm, x, others, rows=1):
    """Outputs and gradients of the last rows, when all the others are 0 and pass 0."""
    module = build(norm)
    x.requires_grad_()
    outputs = getattr(module, norm.name)(x, *others)
    y = outputs[0] if isinstance(outputs, tuple) else outputs
    (y[..., -rows:, :].float().square().sum()).backward()
    return y[..., -rows:, :].detach(), x.grad[..., -rows:, :]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "shape, io", [((1, 524289, 4096), BF16), ((2**23 + 16, 256), BF16)], ids=str
)
def test_the_last_row_of_more_than_int32_elements(shape, io, strategy):
    norm = make(strategy=strategy)
    *_, length = shape
    x = torch.zeros(shape, dtype=io, device="cuda")
    last = torch.randn(1, length, device="cuda").to(io)
    x[..., -1:, :] = last
    weight = torch.rand(length, device="cuda").to(io) + 0.5
    y, dx = last_row_alone(norm, x, (weight,))
    small = last.clone()
    y1, dx1 = last_row_alone(norm, small, (weight,))
    assert torch.equal(y.reshape(1, -1), y1)
    assert torch.equal(dx.reshape(1, -1), dx1)
    assert y.any() and dx.any()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_residual_of_more_than_int32_elements(strategy):
    norm = make(residual="pre_add", strategy=strategy, backward=False)
    rows, length = 4195000, 1024
    residual = torch.zeros(rows, length, dtype=F16, device="cuda")
    residual[-1] = torch.randn(length, device="cuda")
    x = torch.zeros_like(residual)
    x[-1] = torch.randn(length, device="cuda")
    weight = torch.ones(length, dtype=F16, device="cuda")
    y, total = build(norm).rms_norm(x, weight, residual)
    assert torch.equal(total[-1], x[-1] + residual[-1])
    few = build(norm).rms_norm(x[-1:].clone(), weight, residual[-1:].clone())
    assert torch.equal(y[-1:], few[0])


@pytest.mark.parametrize("operand", ["x", "residual"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_few_rows_very_far_apart(strategy, operand):
    norm = make(residual="pre_add", strategy=strategy)
    stride, length = 2**30 + 8, 1024
    buffer = torch.empty(2 * stride + length, dtype=BF16, device="cuda")
    far = buffer.as_strided((3, length), (stride, 1))
    inputs = case(norm, (3, length), BF16, device="cuda")
    inputs = inputs.with_tensors(**{operand: far.copy_(inputs.tensors()[operand])})
    check(build(norm), norm, inputs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_whose_rows_are_very_far_apart(strategy):
    norm = make(strategy=strategy)
    stride, length = 2**30 + 8, 1024
    inputs = case(norm, (3, length), BF16, device="cuda")
    upstream = upstream_for(norm, Oracle(norm, inputs))
    buffer = torch.empty(2 * stride + length, dtype=BF16, device="cuda")
    far = buffer.as_strided((3, length), (stride, 1)).copy_(upstream["y"])
    plain = run(build(norm), norm, inputs, upstream)
    strided = run(build(norm), norm, inputs, {"y": far})
    for name, gradient in plain.gradients.items():
        assert torch.equal(gradient, strided.gradients[name]), name


@pytest.mark.parametrize("rows", [65535, 65537, 200001])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_rows_than_a_grid_axis_of_65535(strategy, rows):
    norm = make(variant="layer_norm", bias=True, strategy=strategy)
    check_spec(norm, (rows, 128), BF16, "cuda")


@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("length", [1000, 4096, 8192, 16384, 65537])
def test_a_training_batch(length, io):
    norm = make(
        variant="layer_norm", bias=True, residual="pre_add", save_stats="always"
    )
    check_spec(norm, (4096 if length < 10**4 else 1025, length), io, "cuda")


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("length", [72, 4096])
def test_about_as_many_rows_as_multiprocessors(length, extra):
    count = torch.cuda.get_device_properties(0).multi_processor_count
    norm = make(bias=True)
    check_spec(norm, (count + extra, length), BF16, "cuda")


def test_a_bfloat16_weight_gradient_over_many_rows_is_summed_in_float32():
    norm = make()
    inputs = case(norm, (32768, 256), BF16, device="cuda")
    ones = torch.ones_like(inputs.x)
    got = run(build(norm), norm, inputs, {"y": ones}).gradients["weight"].double()
    wide = inputs.x.double()
    x_hat = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(got, x_hat.sum(0), rtol=2**-8, atol=1.0)


def test_gradients_are_bitwise_repeatable_over_many_runs():
    norm = make(variant="layer_norm", bias=True)
    inputs = case(norm, (8192, 2048), BF16, device="cuda")
    upstream = upstream_for(norm, Oracle(norm, inputs))
    first = run(build(norm), norm, inputs, upstream).gradients
    for _ in range(100):
        again = run(build(norm), norm, inputs, upstream).gradients
        for name, gradient in first.items():
            assert torch.equal(gradient, again[name]), name


def test_a_captured_graph_replays_with_new_data():
    norm = make(residual="pre_add")
    module = build(norm)
    inputs = case(norm, (64, 4096), BF16, device="cuda")
    x = inputs.x.clone().requires_grad_()
    dy = torch.randn_like(inputs.x)

    def step():
        y, _ = module.rms_norm(x, inputs.weight, inputs.residual)
        return y, *torch.autograd.grad(y, [x], dy)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(5):
        with torch.no_grad():
            x.copy_(case(norm, (64, 4096), BF16, device="cuda", seed=seed).x)
        graph.replay()
        for replayed, expected in zip(captured, step(), strict=True):
            assert torch.equal(replayed, expected)


def test_the_device_of_x_counts_not_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    norm = make(residual="pre_add")
    inputs = case(norm, (64, 4096), BF16, device="cuda:1")
    assert torch.cuda.current_device() == 0
    check(build(norm), norm, inputs)
    assert torch.cuda.current_device() == 0
