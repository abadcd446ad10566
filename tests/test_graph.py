"""A norm as a graph: its values, their names, and where each is rounded."""

from __future__ import annotations

from typing import Any

import pytest
from renderings import every_norm
from support.build import make

from normgen import graph
from normgen.adjoint import differentiate
from normgen.dtypes import FLOAT32, of, promote
from normgen.expr import names
from normgen.notation import FUNCTIONS
from normgen.spaces import COLUMN, ELEMENT, GROUP, HEAD, ROW, SAMPLE

LLAMA = {"normalized": "io", "out_dtype": "promote"}
X, W = of("x"), of("w")
XW = promote(X, W)
RMS = [("rstd", "rsqrt(mean_square + 1e-05)"), ("x_hat", "x * rstd")]
LAYER = [
    ("centered", "masked(x - mean)"),
    ("rstd", "rsqrt(variance + 1e-05)"),
    ("x_hat", "centered * rstd"),
]
ADDED = [("rstd", "rsqrt(mean_square + 1e-05)"), ("x_hat", "h * rstd")]

#: fields -> the lines: target, formula, and dtype where that is not float32
LINES = [
    (LLAMA, [*RMS, ("rounded", "x_hat", X), ("y", "rounded * w")]),
    (
        {**LLAMA, "residual": "pre_add"},
        [("h", "x + r", X), *ADDED, ("rounded", "x_hat", X), ("y", "rounded * w")],
    ),
    (
        {"residual": "pre_add", "residual_sum": "float32"},
        [("h", "x + r"), *ADDED, ("y", "x_hat * w")],
    ),
    (
        {"residual": "pre_add", "residual_dtype": "float32"},
        [("h", "x + r"), *ADDED, ("y", "x_hat * w")],
    ),
    ({"weight_offset": 1.0}, [*RMS, ("gain", "1.0 + w"), ("y", "x_hat * gain")]),
    (
        {"weight_offset": 1.0, "offset_precision": "param"},
        [*RMS, ("gain", "1.0 + w", W), ("y", "x_hat * gain")],
    ),
    (
        {"weight_offset": 1.0, "residual": "post_add"},
        [
            *RMS,
            ("gain", "1.0 + w"),
            ("scaled", "x_hat * gain"),
            ("normed", "scaled", X),
            ("y", "r + normed"),
        ],
    ),
    (
        {"residual": "post_add", "residual_sum": "float32"},
        [*RMS, ("scaled", "x_hat * w"), ("y", "r + scaled")],
    ),
    (
        {"normalized": "weight", "out_dtype": "promote"},
        [*RMS, ("rounded", "x_hat", W), ("y", "rounded * w")],
    ),
    (
        {"variant": "layer_norm", "bias": True},
        [*LAYER, ("scaled", "x_hat * w"), ("y", "scaled + b")],
    ),
    ({"variant": "layer_norm", "weight": "none"}, LAYER),
    (
        {**LLAMA, "variant": "layer_norm", "bias": True},
        [
            *LAYER,
            ("rounded", "x_hat", X),
            ("scaled", "rounded * w", XW),
            ("y", "scaled + b"),
        ],
    ),
    (
        {"normalized": "io", "affine_rounding": "io", "out_dtype": "float32"},
        [*RMS, ("rounded", "x_hat", X), ("scaled", "rounded * w"), ("y", "scaled", X)],
    ),
    # a Python number takes no part in promotion
    (
        {**LLAMA, "scale": 0.5},
        [
            *RMS,
            ("rounded", "x_hat", X),
            ("rescaled", "rounded * 0.5", X),
            ("y", "rescaled * w"),
        ],
    ),
    ({"scale": "sqrt_hidden_size", "weight": "none"}, [*RMS, ("y", "x_hat * root_n")]),
    # the weight before the statistic, the gate after it
    (
        {"affine.position": "before", "rounding.input": "io"},
        [
            ("scaled", "x * w"),
            ("row_cast", "scaled", X),
            ("rstd", "rsqrt(mean_square + 1e-05)"),
            ("x_hat", "row_cast * rstd"),
        ],
    ),
    (
        {"affine.position": "factor"},
        [*RMS, ("row_gain", "rstd * w"), ("y", "x * row_gain")],
    ),
    (
        {"gate.position": "before", "gate.precision": "float32", "weight": "none"},
        [
            ("sigma_gate", "sigmoid(gate)"),
            ("activated_gate", "silu(gate, sigma_gate)"),
            ("slope_gate", "sigma_gate * (1.0 + gate * (1.0 - sigma_gate))"),
            ("gated", "x * activated_gate"),
            ("rstd", "rsqrt(mean_square + 1e-05)"),
            ("x_hat", "gated * rstd"),
        ],
    ),
    # modulation in the dtype of its operands
    (
        {**LLAMA, "modulation.per": "sample"},
        [
            *RMS,
            ("rounded", "x_hat", X),
            ("scaled", "rounded * w", XW),
            ("factor", "1.0 + s", of("s")),
            ("modulated", "scaled * factor", promote(XW, of("s"))),
            ("y", "modulated + t"),
        ],
    ),
    (
        {**LLAMA, "modulation.per": "sample", "modulation.precision": "float32"},
        [
            *RMS,
            ("rounded", "x_hat", X),
            ("scaled", "rounded * w", XW),
            ("factor", "1.0 + s"),
            ("modulated", "scaled * factor"),
            ("y", "modulated + t"),
        ],
    ),
    # two results of one value
    (
        {"second_affine": True},
        [*RMS, ("y", "x_hat * w"), ("y2", "x_hat * w2")],
    ),
    # the branch before the residual, each rounded to its own promotion
    (
        {
            "residual": "pre_add",
            "residual_scale": 0.5,
            "branch_scale.per": "channel",
            "weight": "none",
        },
        [
            ("branch", "x * alpha", promote(X, of("alpha"))),
            ("scaled_r", "r * 0.5", X),
            ("h", "branch + scaled_r", X),
            *ADDED,
        ],
    ),
    (
        {"residual": "post_add", "branch_scale.constant": 0.5, "weight": "none"},
        [
            *RMS,
            ("normed", "x_hat", X),
            ("branch", "normed * 0.5", X),
            ("y", "r + branch"),
        ],
    ),
]


def order(**fields: Any) -> list[str]:
    """The values of a norm in order, without those that steps share."""
    built = graph.build(make(**fields))
    return [node.out for node in built.nodes]


def test_the_steps_before_the_statistic_stand_in_their_order() -> None:
    fields = {
        "residual": "pre_add",
        "branch_scale.per": "row",
        "affine.position": "before",
        "gate.position": "before",
        "rounding.input": "io",
        "weight": "vector",
    }
    made = ["branch", "h", "scaled", "gated", "row_cast"]
    assert order(**fields)[:5] == made


def test_the_steps_after_the_statistic_stand_in_their_order() -> None:
    fields = {
        "rounding.normalized": "io",
        "scale": 0.5,
        "affine.bias": True,
        "rounding.affine": "io",
        "modulation.per": "row",
        "gate.position": "after",
        "post_activation": "gelu",
        "residual": "post_add",
        "branch_scale.per": "sample",
    }
    assert order(**fields) == [
        *("x_hat", "rounded", "rescaled", "scaled", "shifted", "affine"),
        *("modulated", "translated", "gated", "activated", "normed", "branch", "y"),
    ]


def test_a_second_result_forks_after_what_both_share() -> None:
    made = {"second_affine": True, "affine.bias": True, "rounding.normalized": "io"}
    built = graph.build(make(**made))
    assert [node.out for node in built.epilogue] == [
        *("rounded", "scaled", "y", "scaled2", "y2")
    ]
    assert [node.source for node in built.epilogue] == [
        *("x_hat", "rounded", "scaled", "rounded", "scaled2")
    ]
    assert list(built.results) == ["y", "y2"]


@pytest.mark.parametrize("residual", ["pre_add", "post_add"])
def test_a_branch_scale_is_a_tensor_only_where_it_is_no_constant(residual) -> None:
    of_tensor = {"channel": COLUMN, "sample": SAMPLE, "row": ELEMENT}
    for per, space in of_tensor.items():
        made = graph.build(make(residual=residual, **{"branch_scale.per": per}))
        assert made.tensors["alpha"] == space
    made = graph.build(make(residual=residual, **{"branch_scale.constant": 0.5}))
    assert "alpha" not in made.tensors


def test_a_replayed_sum_is_stored_in_its_own_dtype_where_the_branch_is_wider() -> None:
    """What later sweeps read back is what they would make: it is rounded to it."""
    wide = {"residual": "pre_add", "branch_scale.per": "channel"}
    built = graph.build(make(**wide))
    (h,) = (node for node in built.prologue if node.out == "h")
    assert built.replayed == ("h",)
    assert h.dtype == built.dtypes["h"] == X
    assert h.step.rounds_to == X
    assert h.rounded
    exact = graph.build(make(**wide, residual_dtype="float32"))
    (h,) = (node for node in exact.prologue if node.out == "h")
    assert h.dtype == exact.dtypes["h"] == FLOAT32


@pytest.mark.parametrize(
    "fields, tensor, space",
    [
        ({}, "w", COLUMN),
        ({"affine.weight": "per_head"}, "w", HEAD),
        (
            {"affine.weight": "per_group", "group_size": 8, "hidden_size": 64},
            "w",
            GROUP,
        ),
        ({"affine.weight": "none", "affine.bias": True}, "b", COLUMN),
        ({"gate.position": "after"}, "gate", ELEMENT),
        ({"modulation.per": "sample"}, "s", SAMPLE),
        ({"modulation.per": "row"}, "t", ELEMENT),
        ({"residual": "pre_add"}, "r", ELEMENT),
    ],
    ids=str,
)
def test_a_tensor_has_the_index_space_that_the_spec_gives_it(fields, tensor, space):
    assert graph.build(make(**fields)).tensors[tensor] == space


def test_a_factor_is_one_value_a_row() -> None:
    built = graph.build(make(output="factor", weight="none"))
    assert built.spaces == {"factor": ROW}
    assert built.results == {"factor": "factor"}
    assert built.dtypes["factor"] == X


@pytest.mark.parametrize("fields, lines", LINES)
def test_a_norm_has_these_lines(fields, lines) -> None:
    found = graph.build(make(**fields)).lines
    wanted = [(*line, FLOAT32)[:3] for line in lines]
    assert [(line.target, line.formula, line.dtype) for line in found] == wanted


@pytest.mark.parametrize(
    "fields, dtype",
    [
        ({}, X),
        ({"out_dtype": "promote"}, FLOAT32),
        (LLAMA, XW),
        ({**LLAMA, "weight": "none"}, X),
        ({**LLAMA, "parameters": "same"}, X),
        ({**LLAMA, "parameters": "float32"}, FLOAT32),
        ({**LLAMA, "bias": True}, promote(XW, of("b"))),
        ({**LLAMA, "dtype": ("bfloat16",), "parameters": "float16"}, FLOAT32),
        ({**LLAMA, "dtype": ("bfloat16",)}, promote(of("bfloat16"), W)),
        ({"normalized": "weight", "out_dtype": "promote"}, W),
        ({"affine_rounding": "io", "out_dtype": "promote"}, X),
        ({"out_dtype": "float16"}, of("float16")),
        ({**LLAMA, "weight_offset": 1.0}, FLOAT32),
        ({**LLAMA, "weight_offset": 1.0, "offset_precision": "param"}, XW),
        ({"residual": "post_add", "out_dtype": "float16"}, X),
        ({**LLAMA, "scale": 0.5}, XW),
        ({**LLAMA, "modulation.per": "row"}, promote(XW, of("s"), of("t"))),
        (
            {**LLAMA, "modulation.factor": "plain", "modulation.operands": "scale"},
            promote(XW, of("s")),
        ),
        ({**LLAMA, "modulation.precision": "float32"}, FLOAT32),
        ({**LLAMA, "gate.precision": "io"}, promote(XW, of("gate"))),
        ({**LLAMA, "gate.precision": "float32"}, FLOAT32),
        ({**LLAMA, "post_activation": "gelu"}, XW),
        ({"statistics.precision": "io", "out_dtype": "promote"}, XW),
        ({"statistics.precision": "io", "weight": "none", "out_dtype": "promote"}, X),
        ({"affine.position": "factor", "out_dtype": "promote"}, FLOAT32),
        (
            {"affine.position": "factor", "statistics.precision": "io"}
            | {"out_dtype": "promote"},
            XW,
        ),
        ({"residual": "post_add", "residual_dtype": "float32"}, FLOAT32),
    ],
    ids=lambda part: str(part) if isinstance(part, dict) else "-".join(sorted(part)),
)
def test_y_has_the_dtype_that_the_spec_says(fields, dtype) -> None:
    assert graph.build(make(**fields)).dtypes["y"] == dtype


@pytest.mark.parametrize("residual_dtype, dtype", [("same", X), ("float32", FLOAT32)])
@pytest.mark.parametrize("residual_sum", ["rounded", "float32"])
def test_the_returned_sum_has_the_dtype_of_the_residual(
    residual_sum, residual_dtype, dtype
) -> None:
    built = graph.build(
        make(
            residual="pre_add",
            residual_dtype=residual_dtype,
            residual_sum=residual_sum,
        )
    )
    assert built.dtypes["h"] == built.dtypes["r"] == dtype
    assert list(built.results) == ["y", "h"]
    assert built.replayed == (("h",) if residual_sum == "rounded" else ())


def test_a_single_dtype_is_named() -> None:
    built = graph.build(make(dtype=("bfloat16",), parameters="same"))
    assert built.dtypes["x"] == built.dtypes["w"] == of("bfloat16")


def test_only_the_tensors_that_are_read_are_listed() -> None:
    everything = {"variant": "layer_norm", "bias": True, "residual": "pre_add"}
    spaces = {"x": ELEMENT, "r": ELEMENT, "w": COLUMN, "b": COLUMN}
    assert graph.build(make(**everything)).tensors == spaces
    assert graph.build(make(weight="none")).tensors == {"x": ELEMENT}


def test_eps_is_a_literal_or_a_name() -> None:
    assert graph.build(make(eps=1e-12)).eps == "1e-12"
    assert "eps" in graph.build(make(eps="argument")).lines[0].uses


#: What lines may read that no line makes.
GIVEN = {"eps", "cols", "N", "root_n", *FUNCTIONS}


@pytest.mark.parametrize("name", every_norm())
def test_every_line_reads_what_stands_before_it_and_each_is_read(name) -> None:
    built = graph.build(every_norm()[name])
    made = GIVEN | set(built.tensors)
    waiting = list(built.means)
    for line in built.lines:
        while waiting and names(waiting[0].term) <= made:
            made.add(waiting.pop(0).name)
        assert line.uses <= made, line
        assert line.target not in made, f"{line.target} is made twice"
        made.add(line.target)
    assert not waiting
    targets = {line.target for line in built.lines}
    adjoint = differentiate(built)  # which may share what only gradients read
    read = set().union(*(line.uses for line in (*built.lines, *adjoint.lines)))
    means = (*built.means, *adjoint.means)
    read |= set().union(*(names(mean.term) for mean in means))
    assert targets <= read | set(built.results.values())


@pytest.mark.parametrize("name", every_norm())
def test_no_value_is_rounded_to_the_dtype_that_it_has(name) -> None:
    built = graph.build(every_norm()[name])
    dtype = built.norm.dtype
    for node in built.epilogue:
        if node.step.rounds_to is not None:
            assert node.dtype not in (dtype, FLOAT32)
        dtype = node.dtype
