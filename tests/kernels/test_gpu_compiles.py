"""What makes a kernel compile again on a GPU, and what must not."""

from __future__ import annotations

import pytest
import torch
from support.build import load, make, text_of
from support.checks import run
from support.inputs import case, gradient_like

pytestmark = pytest.mark.gpu

NORM = make(name="counted", eps="argument", residual="pre_add", bias=True)


def fresh(norm=NORM, name="counted_module"):
    """A module of its own, so that nothing was compiled before."""
    return load(text_of(norm), name)


def compiles(module):
    """How many compiled kernels the module's functions hold, by kernel."""
    import triton

    device = torch.cuda.current_device()
    counts = {
        name: len(function.device_caches[device][0])
        for name, function in vars(module).items()
        if isinstance(function, triton.JITFunction)
    }
    return {name: count for name, count in counts.items() if count}


def train(module, norm, rows, length, io=torch.bfloat16, eps=1e-5, change=None):
    inputs = case(norm, (rows, length), io, device="cuda", eps=eps)
    if change is not None:
        inputs = inputs.map(lambda t: change(t) if t.ndim > 1 else t)
    upstream = {
        "y": gradient_like(inputs.x),
        "residual_sum": gradient_like(inputs.residual),
    }
    if change is not None:
        upstream = {name: change(gradient) for name, gradient in upstream.items()}
    run(module, norm, inputs, upstream)


@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_one_compile_serves_any_rows_strides_and_eps(strategy):
    norm = NORM.model_copy(update={"strategy": strategy})
    module = fresh(norm, f"any_{strategy}")
    train(module, norm, 64, 1024)
    first = compiles(module)
    assert all(count == 1 for count in first.values()), first
    for rows in (1, 2, 3, 15, 16, 17, 128, 129, 1000):
        train(module, norm, rows, 1024)
    for eps in (1e-6, 1.0, 0.5, 1):
        train(module, norm, 64, 1024, eps=eps)
    for stride in (1024 + 8, 2048, 4096):

        def strided(tensor, stride=stride):
            base = tensor.new_zeros(tensor.shape[0], stride)
            base[:, :1024] = tensor
            return base[:, :1024]

        train(module, norm, 64, 1024, change=strided)
    assert compiles(module) == first


def test_alignment_makes_exactly_two():
    module = fresh(name="two_alignments")
    train(module, NORM, 64, 1024)

    def odd(tensor):
        base = tensor.new_zeros(tensor.numel() + 8)
        view = base[1 : 1 + tensor.numel()].view(tensor.shape)
        return view.copy_(tensor)

    def odd_rows(tensor):
        base = tensor.new_zeros(tensor.shape[0], 1025)
        base[:, :1024] = tensor
        return base[:, :1024]

    train(module, NORM, 64, 1024, change=odd)
    once = compiles(module)
    train(module, NORM, 64, 1024, change=odd_rows)
    train(module, NORM, 1, 1024, change=odd)
    assert compiles(module) == once
    for name, count in once.items():
        assert count == (1 if "sum_partials" in name else 2), (name, count)


def test_each_row_length_and_dtype_is_one_compile():
    module = fresh(name="lengths_and_dtypes")
    for length in (64, 1024, 4096):
        for io in (torch.float32, torch.bfloat16):
            for rows in (1, 33):
                train(module, NORM, rows, length, io=io)
    assert max(compiles(module).values()) <= 6
