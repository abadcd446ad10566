"""What a plan decides: names, arguments, results, and which kernel takes which rows."""

from __future__ import annotations

import itertools

import pytest
from renderings import every_norm
from support.build import make

from normgen.plan import NormPlan, plan
from normgen.strategies import STRATEGIES

NORMS = every_norm()
DIRECTIONS = ("forward", "backward")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("rms_norm", "RMSNorm"),
        ("add_rms_norm", "AddRMSNorm"),
        ("layer_norm", "LayerNorm"),
        ("qk_norm", "QKNorm"),
        ("norm2", "Norm2"),
    ],
)
def test_the_module_is_named_after_the_function(name: str, expected: str) -> None:
    assert plan(make(name=name)).class_name == expected


def test_one_strategy_needs_no_name_in_the_kernel() -> None:
    made = plan(make(hidden_size=4096))
    assert [k.name for k in made.forward_kernels] == ["_rms_norm_fwd_kernel"]
    assert [k.name for k in made.backward_kernels] == ["_rms_norm_bwd_kernel"]


def test_several_strategies_are_told_apart_by_name() -> None:
    made = plan(make(hidden_size=(32768, 128, 4096)))
    for kernels, way in ((made.forward_kernels, "fwd"), (made.backward_kernels, "bwd")):
        names = [kernel.name for kernel in kernels]
        wanted = ("rows", "row", "loop")
        assert names == [f"_rms_norm_{way}_{strategy}_kernel" for strategy in wanted]


def test_branches_are_sorted_and_the_last_is_open() -> None:
    made = plan(make(hidden_size=(4096, 128, 16384, 1024, 32768)))
    found = [(b.strategy.name, b.lengths, b.largest) for b in made.forward_branches]
    assert found == [
        ("rows", (128, 1024), 1024),
        ("row", (4096, 16384), 16384),
        ("loop", (32768,), None),
    ]


@pytest.mark.parametrize("name", NORMS)
def test_every_listed_length_is_in_one_branch_that_takes_it(name: str) -> None:
    made = plan(NORMS[name])
    for direction in DIRECTIONS if made.norm.backward else ("forward",):
        branches = made.branches(direction)
        lengths = [n for branch in branches for n in branch.lengths]
        assert lengths == sorted(set(lengths))
        if made.norm.lengths:
            assert lengths == sorted(made.norm.normalized_lengths)
        for branch in branches[:-1]:
            assert branch.largest == branch.lengths[-1]
        assert branches[-1].largest is None


@pytest.mark.parametrize("name", NORMS)
def test_kernels_stand_beside_the_branches_that_launch_them(name: str) -> None:
    made = plan(NORMS[name])
    assert len(made.forward_kernels) == len(made.forward_branches)
    assert len(made.backward_kernels) == len(made.backward_branches)
    assert bool(made.backward_kernels) == made.norm.backward
    kernels = (*made.forward_kernels, *made.backward_kernels)
    assert len({kernel.name for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize(
    "fields, arguments, results",
    [
        ({}, ["x", "weight"], ["y"]),
        ({"weight": "none"}, ["x"], ["y"]),
        (
            {"bias": True, "residual": "pre_add", "eps": "argument"},
            ["x", "weight", "bias", "residual", "eps"],
            ["y", "residual_sum"],
        ),
        (
            {"residual": "pre_add", "save_stats": "always", "variant": "layer_norm"},
            ["x", "weight", "residual"],
            ["y", "residual_sum", "mean", "rstd"],
        ),
        ({"residual": "post_add"}, ["x", "weight", "residual"], ["y"]),
        ({"save_stats": "always"}, ["x", "weight"], ["y", "rstd"]),
        ({"save_stats": "always", "statistics.root": "sqrt"}, None, ["y", "rms"]),
        (
            {"variant": "l2_norm", "max_norm": 1.0, "eps_placement": "none"}
            | {"save_stats": "always"},
            ["x", "weight"],
            ["y", "clip"],
        ),
        ({"output": "factor", "weight": "none"}, ["x"], ["factor"]),
        (
            {"second_affine": True, "bias": True, "residual": "pre_add"}
            | {"gate.position": "before", "branch_scale.per": "row"}
            | {"eps": "argument"},
            [
                *("x", "weight", "bias", "weight2", "bias2", "residual", "gate"),
                *("branch_scale", "eps"),
            ],
            ["y", "y2", "residual_sum"],
        ),
        (
            {"modulation.second": True},
            ["x", "weight", "scale", "shift", "scale2", "shift2"],
            ["y", "y2"],
        ),
    ],
    ids=str,
)
def test_arguments_and_results_are_in_their_order(fields, arguments, results) -> None:
    made = plan(make(**fields))
    assert arguments in (None, list(made.arguments))
    assert list(made.results) == results


def written(made: NormPlan, direction: str) -> set[str]:
    """What the kernels of a direction store."""
    if direction == "forward":
        return {*made.graph.results, *made.graph.statistic.saved}
    gradients = made.adjoint.gradients
    return {*gradients, *(f"{gradient}_partial" for gradient in gradients)}


SIZES = {"n_rows", "n_samples", "eps"}


def kind(name: str, constexpr: bool, stored: set[str]) -> int:
    """Where an argument belongs: inputs, outputs, strides, sizes, constexprs."""
    if constexpr:
        return 4
    if name.endswith("_ptr"):
        return int(name.removesuffix("_ptr") in stored)
    return 2 if name.endswith("_row_stride") else 3


@pytest.mark.parametrize("name", NORMS)
def test_kernel_arguments_are_inputs_outputs_strides_sizes_constexprs(name) -> None:
    made = plan(NORMS[name])
    for direction in DIRECTIONS:
        kernels = (
            made.forward_kernels if direction == "forward" else made.backward_kernels
        )
        for kernel in kernels:
            stored = written(made, direction)
            kinds = [kind(a.name, a.is_constexpr, stored) for a in kernel.arguments]
            assert kinds == sorted(kinds), kernel.name
            for argument, its in zip(kernel.arguments, kinds, strict=True):
                assert bool(argument.doc) == (its != 2), argument
                assert (argument.annotation == "tl.int64") == (its == 2), argument
                assert its != 3 or argument.name in SIZES
                assert its != 4 or argument.name.isupper()


@pytest.mark.parametrize("name", NORMS)
def test_all_kernels_of_a_direction_take_the_same_tensors(name: str) -> None:
    """The host allocates once, whatever kernel it launches then."""
    made = plan(NORMS[name])
    for kernels in (made.forward_kernels, made.backward_kernels):
        for one, other in itertools.pairwise(kernels):
            assert one.elements == other.elements
            assert one.columns == other.columns
            assert one.roundings == other.roundings


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_declares_the_constants_that_its_launches_give(strategy) -> None:
    from normgen.launch import launch

    for direction in DIRECTIONS:
        given = {*launch(128, direction, strategy).options} - {"num_warps"}
        assert given == set(STRATEGIES[strategy].constants)
