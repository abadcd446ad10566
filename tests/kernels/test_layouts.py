"""Operands and gradients of any memory layout give what contiguous ones give."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import run, upstream_for
from support.gradients import gradients
from support.inputs import case
from support.layouts import COLUMN_LAYOUTS, ROW_LAYOUTS
from support.oracle import Oracle

#: every operand at once, by strategy
NORMS = {
    strategy: make(
        variant="layer_norm",
        strategy=strategy,
        bias=True,
        residual="pre_add",
        save_stats="always",
    )
    for strategy in ("row", "rows", "loop")
}
POST_ADD = make(residual="post_add", strategy="row", normalized="io")
SHAPES = {"2d": (9, 72), "3d": (2, 3, 72)}


def check_layouts(
    norm, device, *, shape, io=torch.float32, operands=None, upstream=None
):
    """Holds a run on changed layouts against the oracle on contiguous copies.

    ``operands`` and ``upstream`` map names to layouts.
    """
    inputs = case(norm, shape, io, device=device)
    changes = (operands or {}).items()
    inputs = inputs.with_tensors(
        **{name: layout(inputs.tensors()[name]) for name, layout in changes}
    )
    plain = inputs.map(
        lambda t: t.detach().clone(memory_format=torch.contiguous_format)
    )
    oracle = Oracle(norm, plain)
    given = upstream_for(norm, oracle)
    given |= {name: layout(given[name]) for name, layout in (upstream or {}).items()}
    copies = {name: t.contiguous().clone() for name, t in given.items()}

    done = run(build(norm), norm, inputs, given)
    for name, expected in oracle.outputs().items():
        expected.check(done.outputs[name], name)
        assert done.outputs[name].is_contiguous()
    wanted = gradients(oracle, copies)
    for name, expected in wanted.items():
        expected.check(done.gradients[name], f"d_{name}")
    for name, tensor in inputs.tensors().items():
        assert torch.equal(tensor, plain.tensors()[name]), f"{name} was written"
    for name, tensor in given.items():
        assert torch.equal(tensor, copies[name]), f"the gradient of {name} was written"

    if device == "cpu":  # on a GPU another alignment may sum in another order
        same = run(build(norm), norm, plain, copies)
        for name, tensor in same.outputs.items():
            assert torch.equal(tensor, done.outputs[name]), name
        for name, tensor in same.gradients.items():
            assert torch.equal(tensor, done.gradients[name]), f"d_{name}"


@pytest.mark.parametrize("layout", ROW_LAYOUTS)
@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("operand", ["x", "residual"])
def test_an_input_of_any_layout(operand, rank, layout, device):
    norm = NORMS["row"]
    operands = {operand: ROW_LAYOUTS[layout]}
    check_layouts(norm, device, shape=SHAPES[rank], operands=operands)


@pytest.mark.parametrize("layout", ROW_LAYOUTS)
@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("output", ["y", "residual_sum"])
def test_a_gradient_of_any_layout(output, rank, layout, device):
    norm = NORMS["row"]
    upstream = {output: ROW_LAYOUTS[layout]}
    check_layouts(norm, device, shape=SHAPES[rank], upstream=upstream)


@pytest.mark.parametrize("layout", COLUMN_LAYOUTS)
@pytest.mark.parametrize("operand", ["weight", "bias"])
@pytest.mark.parametrize("strategy", NORMS)
def test_a_parameter_of_any_layout(strategy, operand, layout, device):
    operands = {operand: COLUMN_LAYOUTS[layout]}
    check_layouts(NORMS[strategy], device, shape=(9, 72), operands=operands)


@pytest.mark.parametrize("layout", ROW_LAYOUTS)
@pytest.mark.parametrize("strategy", ["rows", "loop"])
@pytest.mark.parametrize("io", [torch.float16, torch.bfloat16], ids=str)
def test_everything_in_one_layout_at_once(io, strategy, layout, device):
    rows = 71 if strategy == "rows" else 9
    row_layout = ROW_LAYOUTS[layout]
    check_layouts(
        NORMS[strategy],
        device,
        shape=(rows, 72),
        io=io,
        operands={"x": row_layout, "residual": row_layout},
        upstream={"y": row_layout, "residual_sum": row_layout},
    )


@pytest.mark.parametrize("of_dy", ["every_other_row", "transposed", "expanded_scalar"])
@pytest.mark.parametrize("of_x", ["packed", "odd_rows", "expanded_row", "offset_by_3"])
def test_x_and_its_gradient_of_different_layouts(of_x, of_dy, device):
    check_layouts(
        POST_ADD,
        device,
        shape=(9, 72),
        operands={"x": ROW_LAYOUTS[of_x], "residual": ROW_LAYOUTS["every_other_row"]},
        upstream={"y": ROW_LAYOUTS[of_dy]},
    )


@pytest.mark.parametrize("offset", ["offset_by_1", "offset_by_3"])
@pytest.mark.parametrize("length", [257, 1200])
def test_every_operand_off_its_alignment(length, offset, device):
    row, column = ROW_LAYOUTS[offset], COLUMN_LAYOUTS[offset]
    check_layouts(
        NORMS["row"],
        device,
        shape=(5, length),
        io=torch.bfloat16,
        operands={"x": row, "residual": row, "weight": column, "bias": column},
        upstream={"y": row, "residual_sum": row},
    )


def test_strides_of_dimensions_of_size_one_do_not_matter(device):
    norm = make(strategy="row")
    values = case(norm, (1, 6, 72), torch.float32, device=device)
    odd = values.x.as_strided((1, 6, 72), (7, 72, 1), values.x.storage_offset())
    plain = run(build(norm), norm, values).outputs["y"]
    assert torch.equal(
        run(build(norm), norm, values.with_tensors(x=odd)).outputs["y"], plain
    )


def test_a_row_of_one_column_may_have_any_stride(device):
    norm = make(variant="layer_norm", bias=True)
    check_layouts(
        norm,
        device,
        shape=(9, 1),
        operands={"x": ROW_LAYOUTS["packed"]},
        upstream={"y": ROW_LAYOUTS["expanded_scalar"]},
    )


@pytest.mark.parametrize(
    "layout",
    [
        *("every_other_row", "packed", "odd_rows", "offset_by_3"),
        *("transposed", "swapped", "every_other_column", "expanded_row", "overlapping"),
    ],
)
@pytest.mark.parametrize("rank", SHAPES)
def test_a_residual_is_overwritten_in_place_or_refused(rank, layout, device):
    norm = make(residual="pre_add", residual_in_place=True, backward=False)
    inputs = case(norm, SHAPES[rank], torch.bfloat16, device=device)
    residual = ROW_LAYOUTS[layout](inputs.residual)
    inputs = inputs.with_tensors(residual=residual)
    before = residual.clone()
    expected = (inputs.x.float() + residual.float()).to(residual.dtype)
    try:
        y, total = build(norm).rms_norm(*inputs.arguments())
    except ValueError as error:
        assert "residual" in str(error)
        assert torch.equal(residual, before)
        assert residual.reshape(-1, 72).data_ptr() != residual.data_ptr() or (
            layout
            in ("transposed", "every_other_column", "expanded_row", "overlapping")
        )
        return
    assert torch.equal(residual, expected)
    assert torch.equal(total, expected)
    as_summed = inputs.with_tensors(x=expected, residual=torch.zeros_like(expected))
    Oracle(norm, as_summed).outputs()["y"].check(y, "y")
