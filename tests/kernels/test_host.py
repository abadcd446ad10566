"""What a call does on the host: what it launches, compiles and allocates."""

from __future__ import annotations

import json

import pytest
import torch
from support.build import build, make
from support.inputs import case
from support.launches import launches_of, recorded
from support.layouts import ROW_LAYOUTS
from support.places import shape_for
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

POISONED = False  # guards are allocations too

NORM = make(variant="layer_norm", eps="argument", residual="pre_add", bias=True)
ROWS = (1, 2, 3, 16, 17, 128, 129, 1000, 4096)
STRATEGIES = ("auto", "row", "rows", "loop")


def keys(norm, inputs, monkeypatch):
    """What distinguishes the compiles of a call and its backward."""
    launches = launches_of(build(norm), norm, inputs, monkeypatch)
    return {
        json.dumps({k: v for k, v in launch.items() if k != "grid"}, default=str)
        for launch in launches
    }


@pytest.mark.parametrize("length", [72, 4096, 32768])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_number_of_rows_compiles_again(strategy, length, device, monkeypatch):
    if (strategy, length) in {("row", 32768), ("rows", 32768)}:
        length = 1024
    norm = NORM.model_copy(update={"strategy": strategy})
    found = [
        keys(
            norm,
            case(norm, (rows, length), torch.bfloat16, device=device),
            monkeypatch,
        )
        for rows in ROWS[: 9 if length == 72 else 4]
    ]
    assert all(each == found[0] for each in found)


def test_no_stride_compiles_again(device, monkeypatch):
    inputs = case(NORM, (9, 64), torch.bfloat16, device=device)
    first = keys(NORM, inputs, monkeypatch)
    for layout in ("packed", "every_other_row", "expanded_row"):
        changed = inputs.with_tensors(x=ROW_LAYOUTS[layout](inputs.x))
        assert keys(NORM, changed, monkeypatch) == first, layout


@pytest.mark.parametrize("eps", [1e-6, 1.0, 0.5, 1])
def test_no_eps_compiles_again(eps, device, monkeypatch):
    first, second = (
        keys(
            NORM, case(NORM, (9, 64), torch.bfloat16, device=device, eps=e), monkeypatch
        )
        for e in (1e-5, eps)
    )
    assert first == second


def test_alignment_is_one_more_compile(device, monkeypatch):
    inputs = case(NORM, (9, 64), torch.bfloat16, device=device)
    aligned = keys(NORM, inputs, monkeypatch)
    found = [
        keys(NORM, inputs.with_tensors(x=ROW_LAYOUTS[layout](inputs.x)), monkeypatch)
        for layout in ("offset_by_1", "offset_by_3", "odd_rows")
    ]
    assert found[0] == found[1] == found[2] != aligned


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_only_a_norm_that_may_depends_on_the_number_of_rows(
    batch_invariant, device, monkeypatch
):
    norm = make(batch_invariant=batch_invariant, hidden_size=1024)
    few, many = (
        keys(norm, case(norm, (r, 1024), torch.bfloat16, device=device), monkeypatch)
        for r in (8, 4096)
    )
    assert (few == many) == batch_invariant


class Allocations(TorchDispatchMode):
    """The shapes and dtypes of all storages that torch makes."""

    def __init__(self, known):
        super().__init__()
        self.kept = list(known)  # a freed address could come again
        self.seen = {t.untyped_storage().data_ptr() for t in known}
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
                continue
            address = tensor.untyped_storage().data_ptr()
            if address not in self.seen:
                self.seen.add(address)
                self.kept.append(tensor)
                self.made.append((tuple(tensor.shape), tensor.dtype))
        return result


def allocations(inputs, call, monkeypatch):
    with recorded(monkeypatch), Allocations(inputs) as mode:
        call()
    return sorted(mode.made, key=str)


@pytest.mark.parametrize("fields", [{}, {"residual": "pre_add"}], ids=str)
def test_inference_allocates_its_results_and_nothing_else(fields, device, monkeypatch):
    norm = make(**fields)
    inputs = case(norm, (64, 1024), torch.bfloat16, device=device)
    tensors = list(inputs.tensors().values())
    function = build(norm).rms_norm
    made = allocations(tensors, lambda: function(*tensors), monkeypatch)
    results = 1 + ("residual" in fields)
    assert made == [((64, 1024), torch.bfloat16)] * results


MODULATED = {"modulation.operands": "scale_shift", "modulation.per": "sample"}
FEATURES = {
    "modulated": (MODULATED, 1, 1),
    "two results": ({"second_affine": True, "variant": "layer_norm"}, 2, 2),
    "gated": ({"gate.position": "before", "gate.precision": "io"}, 1, 1),
    "heads": ({"weight": "per_head"}, 1, 1),
    "groups": ({"group_size": 16, "hidden_size": 64}, 1, 1),
    "channel": ({"axis": "channel", "variant": "layer_norm"}, 1, 2),
    "branch": ({"residual": "pre_add", "branch_scale.per": "row"}, 2, 1),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_allocate_their_results_and_statistics(name, device, monkeypatch):
    fields, results, statistics = FEATURES[name]
    norm = make(name="some_norm", **fields)
    shape = shape_for(norm, 24, 64)
    tensors = list(case(norm, shape, torch.bfloat16, device=device).tensors().values())
    function = build(norm).some_norm
    with torch.no_grad():
        made = allocations(tensors, lambda: function(*tensors), monkeypatch)
    assert made == [(shape, torch.bfloat16)] * results
    tensors = [t.detach().requires_grad_() for t in tensors]
    made = allocations(tensors, lambda: function(*tensors), monkeypatch)
    kept = [size for size, dtype in made if dtype == torch.float32]
    rows = torch.Size(shape).numel() // 64 * (4 if name == "groups" else 1)
    assert len(made) == results + statistics
    assert [torch.Size(size).numel() for size in kept] == [rows] * statistics


def test_a_sum_in_place_allocates_the_norm_alone(device, monkeypatch):
    norm = make(residual="pre_add", residual_in_place=True, backward=False)
    inputs = case(norm, (64, 1024), torch.bfloat16, device=device)
    tensors = list(inputs.tensors().values())
    function = build(norm).rms_norm
    made = allocations(tensors, lambda: function(*tensors), monkeypatch)
    assert made == [((64, 1024), torch.bfloat16)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_allocates_statistics_one_gradient_and_bounded_sums(
    strategy, device, monkeypatch
):
    norm = make(variant="layer_norm", bias=True, strategy=strategy)
    rows, length = 4096, 1024
    inputs = case(norm, (rows, length), torch.bfloat16, device=device)
    tensors = [t.requires_grad_() for t in inputs.tensors().values()]
    function = build(norm).layer_norm
    kept = []
    made = allocations(tensors, lambda: kept.append(function(*tensors)), monkeypatch)
    statistic = ((rows,), torch.float32)
    assert sorted(made, key=str) == sorted(
        [((rows, length), torch.bfloat16), statistic, statistic], key=str
    )

    y = kept[0]
    dy = torch.ones_like(y)
    made = allocations(
        [y, dy, *tensors],
        lambda: torch.autograd.grad(y, tensors, dy),
        monkeypatch,
    )
    large = [one for one in made if one[0][0] >= rows]
    assert large == [((rows, length), torch.bfloat16)]
    for shape, dtype in made:
        if len(shape) == 2 and shape[0] != rows:
            assert dtype == torch.float32
            assert shape[0] <= 64 * max(1, multiprocessors(device))


def multiprocessors(device):
    if device == "cpu":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def test_a_gradient_of_a_sum_is_never_made_contiguous(device, monkeypatch):
    """dy of y.sum() has strides (0, 0): its columns are copied once, not its rows."""
    norm = make()
    x = case(norm, (4096, 1024), torch.bfloat16, device=device).x.requires_grad_()
    weight = torch.ones(1024, dtype=torch.bfloat16, device=device)
    y = build(norm).rms_norm(x, weight)
    row = torch.ones(1024, dtype=torch.bfloat16, device=device)
    dy = row.expand(4096, 1024)
    made = allocations(
        [x, y, weight, row], lambda: torch.autograd.grad(y, [x], dy), monkeypatch
    )
    assert [one for one in made if one[0][0] == 4096] == [
        ((4096, 1024), torch.bfloat16)
    ]


def test_only_the_gradients_that_are_wanted_are_launched(device, monkeypatch):
    norm = make(variant="layer_norm", bias=True)
    inputs = case(norm, (64, 1024), torch.bfloat16, device=device)

    def launched(*wanted):
        with recorded(monkeypatch) as launches:
            y = build(norm).layer_norm(
                *(
                    t.detach().requires_grad_(name in wanted)
                    for name, t in inputs.tensors().items()
                )
            )
            y.backward(torch.ones_like(y))
        return [launch["kernel"] for launch in launches]

    assert len(launched("x", "weight", "bias")) == 4  # forward, backward, two sums
    assert len(launched("x", "weight")) == 3
    assert len(launched("x")) == 2


def test_no_rows_launch_no_kernel_over_rows(device, monkeypatch):
    norm = make(bias=True)
    inputs = case(norm, (0, 64), torch.bfloat16, device=device)
    launches = launches_of(build(norm), norm, inputs, monkeypatch)
    assert all("sum_partials" in launch["kernel"] for launch in launches)
    assert all(all(axis > 0 for axis in launch["grid"]) for launch in launches)
