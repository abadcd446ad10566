"""A wrong formula or a wrong line of a template is noticed: each mutant must fail.

Mutants that change data are rendered from changed formulas, the others from changed
text.  None of them writes where it may not: the interpreter's heap is this process's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.build import load, make, text_of
from support.checks import check
from support.inputs import case
from support.tables import shrink

from normgen import statistics, steps

SHAPE = (13, 45)  # a ragged block, and more rows than 2 programs of 2 rows hold
LAYER = {"variant": "layer_norm", "bias": True}
STRATEGIES = ("row", "rows", "loop")


def survives(norm, text, device, monkeypatch, io=torch.float32):
    """Whether the module of ``text`` passes the oracle's check."""
    module = load(text)
    options = {"row": {}, "rows": {"ROWS_PER_PROGRAM": 2}, "loop": {"BLOCK_SIZE": 16}}
    shrink(monkeypatch, module, norm, programs=2, **options[norm.strategy])
    # few programs, so that each walks over several rows, on a GPU too
    monkeypatch.setitem(module._MULTIPROCESSOR_COUNTS, place(device), 1)
    try:
        check(module, norm, case(norm, SHAPE, io, device=device, seed=5))
    except AssertionError:
        return False
    return True


def place(device: str) -> torch.device:
    return torch.empty(0, device=device).device


#: fields, name of the step in normgen.steps, {"value" or input: wrong formula}
STEP_MUTANTS = [
    ({}, "SCALE", {"x": "dy"}),
    ({}, "SCALE", {"w": "dy"}),
    ({}, "SCALE", {"w": "dy * w"}),
    ({}, "SCALE", {"x": "dy * x"}),
    ({}, "SCALE", {"value": "x + w"}),
    (LAYER, "SHIFT", {"b": "dy * x"}),
    (LAYER, "SHIFT", {"b": "dy * b"}),
    (LAYER, "SHIFT", {"x": "dy * b"}),
    (LAYER, "SHIFT", {"value": "x - b"}),
    ({"residual": "pre_add"}, "ROUNDED_SUM", {"value": "x - r"}),
    ({"residual": "post_add"}, "ADD_RESIDUAL", {"x": "dy * r"}),
    ({"residual": "post_add"}, "ADD_RESIDUAL", {"value": "x * r"}),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("fields, step, change", STEP_MUTANTS, ids=str)
def test_a_wrong_step_is_noticed(fields, step, change, strategy, device, monkeypatch):
    right = getattr(steps, step)
    change = dict(change)
    value = change.pop("value", right.value)
    wrong = replace(right, value=value, grads={**right.grads, **change})
    norm = make(**fields, strategy=strategy)
    monkeypatch.setattr(steps, step, wrong)
    text = text_of(norm)
    assert not survives(norm, text, device, monkeypatch)


@pytest.mark.parametrize("gradient", [{"x": "dy * w"}, {"w": "dy * gain"}], ids=str)
def test_a_wrong_gradient_of_one_plus_w_is_noticed(gradient, device, monkeypatch):
    right = steps.offset_scale

    def wrong(*arguments):
        step = right(*arguments)
        return replace(step, grads={**step.grads, **gradient})

    norm = make(weight_offset=1.0, strategy="row")
    monkeypatch.setattr(steps, "offset_scale", wrong)
    assert not survives(norm, text_of(norm), device, monkeypatch)


ADJOINTS = {
    "rms_norm": [
        "dy * rstd",
        "dy - x_hat * projection",
        "(dy - projection) * rstd",
        "(dy + x_hat * projection) * rstd",
        "(dy - dy * projection) * rstd",
    ],
    "layer_norm": [
        "(dy - x_hat * projection) * rstd",
        "(dy - mean_dx_hat) * rstd",
        "dy - mean_dx_hat - x_hat * projection",
        "(dy - mean_dx_hat - projection) * rstd",
        "(dy + mean_dx_hat - x_hat * projection) * rstd",
    ],
}
FORWARDS = {
    "rms_norm": [{"x_hat": "x"}, {"x_hat": "x * x * rstd"}],
    "layer_norm": [{"x_hat": "x * rstd"}, {"x_hat": "centered"}],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "variant, change",
    [(v, {"adjoint": a}) for v, found in ADJOINTS.items() for a in found]
    + [(v, change) for v, found in FORWARDS.items() for change in found],
    ids=str,
)
def test_a_wrong_statistic_is_noticed(variant, change, strategy, device, monkeypatch):
    assert not survives_statistic(variant, change, strategy, device, monkeypatch)


@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("placement", ["inside_sqrt", "outside_sqrt"])
def test_a_statistic_without_its_eps_is_noticed(
    placement, variant, device, monkeypatch
):
    right = statistics.statistic(variant, placement)
    assert "eps" in right.rstd.kernel
    kernel = right.rstd.kernel.replace(" + eps", "")
    change = {"rstd": replace(right.rstd, kernel=kernel)}
    assert not survives_statistic(
        variant, change, "row", device, monkeypatch, eps=1e-2, eps_placement=placement
    )


def test_a_slope_of_the_other_eps_placement_is_noticed(device, monkeypatch):
    for variant in ("rms_norm", "layer_norm"):
        inside = statistics.statistic(variant, "inside_sqrt")
        change = {"adjoint": inside.adjoint, "adjoint_values": ()}
        assert not survives_statistic(
            variant,
            change,
            "row",
            device,
            monkeypatch,
            eps=1e-2,
            eps_placement="outside_sqrt",
        )


def survives_statistic(variant, change, strategy, device, monkeypatch, **fields):
    from normgen import graph

    right = statistics.statistic

    def wrong(*arguments):
        return replace(right(*arguments), **change)

    norm = make(variant=variant, strategy=strategy, **fields)
    with monkeypatch.context() as patch:
        patch.setattr(graph, "statistic", wrong)
        text = text_of(norm)
    assert text != text_of(norm)
    return survives(norm, text, device, monkeypatch)


#: (fields, strategy, right text, wrong text, dtype): the first place or all of them
TEXT_MUTANTS = [
    (LAYER, "row", "tl.where(mask, x - mean, 0.0)", "x - mean"),
    (LAYER, "rows", "tl.where(mask, x - mean, 0.0)", "x - mean"),
    (LAYER, "loop", "tl.where(mask, x - mean, 0.0)", "x - mean"),
    (LAYER, "row", "dw += ", "dw = "),
    (LAYER, "rows", "dw += ", "dw = "),
    (LAYER, "loop", "dw += ", "dw = "),
    (LAYER, "row", "db += ", "db = "),
    (LAYER, "rows", "db += ", "db = "),
    (LAYER, "loop", "db += ", "db = "),
    (LAYER, "loop", "total += ", "total = "),
    (LAYER, "loop", "projection_total += ", "projection_total = "),
    (LAYER, "row", "range(program, n_rows", "range(program + 1, n_rows"),
    (LAYER, "row", "n_rows, tl.num_programs(0)", "n_rows, 2 * tl.num_programs(0)"),
    (
        LAYER,
        "rows",
        "range(first_row, n_rows, step)",
        "range(first_row, n_rows - 1, step)",
    ),
    (
        LAYER,
        "loop",
        "range(0, HIDDEN_SIZE, BLOCK_SIZE)",
        "range(0, HIDDEN_SIZE - 16, BLOCK_SIZE)",
    ),
    (LAYER, "row", "/ HIDDEN_SIZE", "/ BLOCK_SIZE"),
    (LAYER, "rows", "/ HIDDEN_SIZE", "/ BLOCK_SIZE"),
    (LAYER, "rows", "axis=1, keep_dims=True", "keep_dims=True"),
    (LAYER, "row", "row * dy_row_stride", "program * dy_row_stride"),
    ({"residual": "pre_add"}, "row", "dh + ", ""),
    ({"residual": "pre_add"}, "rows", "dh + ", ""),
    ({"residual": "pre_add"}, "loop", "dh + ", ""),
    ({"weight_offset": 1.0}, "row", "1.0 + w", "w"),
    ({"weight_offset": 1.0}, "row", "1.0 + w", "2.0 + w"),
]
LOW_MUTANTS = [
    ({"normalized": "io"}, "row", ".to(x_ptr.dtype.element_ty).to(tl.float32)", ""),
    ({"residual": "pre_add"}, "row", ".to(x_ptr.dtype.element_ty).to(tl.float32)", ""),
    (
        {"affine_rounding": "io", **LAYER},
        "row",
        "y = scaled + b\n",
        "y = scaled + b * 1.01\n",
    ),
]


@pytest.mark.parametrize("fields, strategy, right, wrong", TEXT_MUTANTS, ids=str)
def test_a_wrong_line_is_noticed(fields, strategy, right, wrong, device, monkeypatch):
    notices(fields, strategy, right, wrong, torch.float32, device, monkeypatch)


@pytest.mark.parametrize("fields, strategy, right, wrong", LOW_MUTANTS, ids=str)
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16], ids=str)
def test_a_wrong_rounding_is_noticed(
    fields, strategy, right, wrong, io, device, monkeypatch
):
    notices(fields, strategy, right, wrong, io, device, monkeypatch)


def notices(fields, strategy, right, wrong, io, device, monkeypatch):
    norm = make(**fields, strategy=strategy)
    text = text_of(norm)
    assert right in text, "the line that this test changes is gone"
    assert not survives(norm, text.replace(right, wrong), device, monkeypatch, io)


def test_a_partial_sum_left_out_is_noticed(device, monkeypatch):
    norm = make(**LAYER, strategy="row")
    text = text_of(norm).replace("total += tl.load", "total = tl.load")
    module = load(text)
    shrink(monkeypatch, module, norm, programs=40)
    with pytest.raises(AssertionError):
        check(module, norm, case(norm, (80, 45), torch.float32, device=device))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fields", [{}, LAYER, {"residual": "pre_add"}], ids=str)
def test_what_is_not_changed_passes(fields, io, strategy, device, monkeypatch):
    norm = make(**fields, strategy=strategy)
    assert survives(norm, text_of(norm), device, monkeypatch, io)
