"""A norm as a graph: its values, their names, and where each is rounded."""

from __future__ import annotations

import pytest
from renderings import covering_norms, repository_norms
from support.build import make

from normgen import graph
from normgen.dtypes import FLOAT32, of, promote
from normgen.expr import names

LLAMA = {"normalized": "io", "out_dtype": "promote"}
X, W = of("x"), of("w")
XW = promote(X, W)
RMS = [("rstd", "tl.rsqrt(mean_square + 1e-05)"), ("x_hat", "x * rstd")]
LAYER = [
    ("centered", "tl.where(mask, x - mean, 0.0)"),
    ("rstd", "tl.rsqrt(variance + 1e-05)"),
    ("x_hat", "centered * rstd"),
]
ADDED = [("rstd", "tl.rsqrt(mean_square + 1e-05)"), ("x_hat", "h * rstd")]

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
            ("y", "normed + r"),
        ],
    ),
    (
        {"residual": "post_add", "residual_sum": "float32"},
        [*RMS, ("scaled", "x_hat * w"), ("y", "scaled + r")],
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
]


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
    spaces = {"x": "element", "r": "element", "w": "column", "b": "column"}
    assert graph.build(make(**everything)).tensors == spaces
    assert graph.build(make(weight="none")).tensors == {"x": "element"}


def test_eps_is_a_literal_or_a_name() -> None:
    assert graph.build(make(eps=1e-12)).eps == "1e-12"
    assert "eps" in graph.build(make(eps="argument")).lines[0].uses


#: What lines may read that no line makes.
GIVEN = {"tl", "mask", "eps"}


@pytest.mark.parametrize("name", [*repository_norms(), *covering_norms()])
def test_every_line_reads_what_stands_before_it_and_each_is_read(name) -> None:
    built = graph.build({**repository_norms(), **covering_norms()}[name])
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
    read = set().union(*(line.uses for line in built.lines))
    read |= set().union(*(names(mean.term) for mean in built.means))
    assert targets <= read | set(built.results.values())


@pytest.mark.parametrize("name", [*repository_norms(), *covering_norms()])
def test_no_value_is_rounded_to_the_dtype_that_it_has(name) -> None:
    built = graph.build({**repository_norms(), **covering_norms()}[name])
    dtype = built.norm.dtype
    for node in built.epilogue:
        if node.step.rounds_to is not None:
            assert node.dtype not in (dtype, FLOAT32)
        dtype = node.dtype
