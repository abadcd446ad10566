"""A wrong formula or a wrong line of a template is noticed: each mutant must fail.

Mutants that change data are rendered from changed formulas, the others from changed
text.  None of them writes where it may not: the interpreter's heap is this process's.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from support.build import load, make, text_of
from support.checks import check
from support.inputs import case
from support.places import has_samples, shape_for
from support.tables import shrink

from normgen import statistics, steps
from normgen.expr import names
from normgen.statistics import Reduction, Value

ROWS, LENGTH = 13, 45  # a ragged block, and more rows than 2 programs of 2 rows hold
LAYER = {"variant": "layer_norm", "bias": True}
STRATEGIES = ("row", "rows", "loop")
SMALL = {
    "row": {},
    "rows": {"ROWS_PER_PROGRAM": 2},
    "loop": {"BLOCK_SIZE": 16},
    "auto": {"ROWS_PER_PROGRAM": 2},
}


def survives(norm, text, device, monkeypatch, io=torch.float32):
    """Whether the module of ``text`` passes the oracle's check."""
    module = load(text)
    shrink(monkeypatch, module, norm, programs=2, **SMALL[norm.strategy])
    # few programs, so that each walks over several rows, on a GPU too
    count = 1
    if has_samples(norm):
        count *= 3
    if norm.group_size is not None or norm.affine.weight == "per_head":
        count *= 3
    monkeypatch.setitem(module._MULTIPROCESSOR_COUNTS, place(device), count)
    shape = shape_for(norm, ROWS, LENGTH)
    try:
        check(module, norm, case(norm, shape, io, device=device, seed=5))
    except AssertionError:
        return False
    return True


def place(device: str) -> torch.device:
    return torch.empty(0, device=device).device


def all_of(block, **fields):
    return {f"{block}.{name}": value for name, value in fields.items()}


GATE = all_of("gate", position="after", activation="silu")
GATE_BEFORE = all_of("gate", position="before", activation="sigmoid")
MODULATION = all_of("modulation", operands="scale_shift", per="sample")
BY_ROW = all_of("modulation", operands="scale_shift", per="row", factor="sigmoid")
CHANNEL = {"axis": "channel", **LAYER}
HEADS = {"weight": "per_head", **LAYER}
GROUPS = {"group_size": 15, "hidden_size": LENGTH}
BRANCH = all_of("branch_scale", per="channel", activation="tanh")
BEFORE = {"affine.position": "before", **GATE_BEFORE}
POST_ADD = {"residual": "post_add"}
PRE_ADD = {"residual": "pre_add"}

#: fields, name of a builder in normgen.steps, {"value", an input, the "factor" that the
#: value reads or the "slope" of an activation: a wrong formula}; {} holds their names
STEP_MUTANTS = [
    ({}, "multiply", {"x": "dy"}),
    ({}, "multiply", {"w": "dy"}),
    ({}, "multiply", {"w": "dy * w"}),
    ({}, "multiply", {"x": "dy * x"}),
    ({}, "multiply", {"value": "x + w"}),
    ({"weight_offset": 1.0}, "multiply", {"x": "dy * w"}),
    ({"weight_offset": 1.0}, "multiply", {"w": "dy * {factor}"}),
    ({"weight_offset": 1.0}, "multiply", {"factor": "1.0 - w"}),
    (LAYER, "add", {"b": "dy * x"}),
    (LAYER, "add", {"b": "dy * b"}),
    (LAYER, "add", {"x": "dy * b"}),
    (LAYER, "add", {"value": "x - b"}),
    (PRE_ADD, "residual_sum", {"value": "x - r"}),
    (POST_ADD, "add_residual", {"x": "dy * r"}),
    (POST_ADD, "add_residual", {"value": "x * r"}),
    ({**POST_ADD, "residual_scale": 0.3}, "add_residual", {"r": "dy"}),
    ({**PRE_ADD, "residual_scale": 0.3}, "residual_sum", {"factor": "r"}),
    ({"scale": 0.3}, "times", {"x": "dy"}),
    ({"scale": 0.3}, "times", {"value": "x"}),
    ({"affine.position": "factor"}, "weigh_factor", {"w": "dy * x * w"}),
    ({"affine.position": "factor"}, "weigh_factor", {"x": "dy * {factor}"}),
    ({"affine.position": "factor"}, "weigh_factor", {"factor": "w"}),
    (GATE, "multiply_activated", {"x": "dy"}),
    (GATE, "multiply_activated", {"gate": "dy * x"}),
    (GATE, "multiply_activated", {"gate": "dy * x * {factor}"}),
    (GATE, "multiply_activated", {"factor": "sigmoid(gate)"}),
    (GATE, "multiply_activated", {"slope": "sigmoid(gate)"}),
    (GATE_BEFORE, "multiply_activated", {"gate": "dy * {slope}"}),
    (GATE_BEFORE, "multiply_activated", {"x": "dy * gate"}),
    (BY_ROW, "multiply_activated", {"s": "dy * {slope}"}),
    (BY_ROW, "multiply_activated", {"factor": "s"}),
    (MODULATION, "multiply", {"s": "dy"}),
    (MODULATION, "multiply", {"factor": "s"}),
    (MODULATION, "add", {"t": "dy * x"}),
    *(
        ({"post_activation": name}, "activate", {"slope": wrong})
        for name in ("gelu", "gelu_tanh", "silu", "tanh", "relu", "sigmoid")
        for wrong in ("1.0 + 0.0 * x", "sigmoid(x)")
    ),
    ({"post_activation": "gelu"}, "activate", {"value": "x * sigmoid(1.702 * x)"}),
    ({"post_activation": "relu"}, "activate", {"value": "x"}),
    ({**POST_ADD, **BRANCH}, "multiply_activated", {"alpha": "dy * x"}),
    ({**PRE_ADD, **BRANCH}, "multiply_activated", {"factor": "alpha"}),
]


@pytest.mark.parametrize("index", range(len(STEP_MUTANTS)))
def test_a_wrong_step_is_noticed(index, device, monkeypatch):
    fields, step, change = STEP_MUTANTS[index]
    strategy = STRATEGIES[index % 3]
    right = getattr(steps, step)
    norm = make(**fields, strategy=strategy)
    text = text_of(norm)

    def wrong(*arguments, **options):
        return changed(right(*arguments, **options), change)

    monkeypatch.setattr(steps, step, wrong)
    mutant = text_of(norm)
    assert mutant != text, "the formula that this test changes is gone"
    assert not survives(norm, mutant, device, monkeypatch)


def changed(step, change):
    """A step with other formulas, where it has what they are of."""
    read = names(step.value)
    roles = {"factor": [h.name for h in step.helpers if h.name in read]}
    roles["slope"] = [h.name for h in step.helpers[-1:]]
    known = {role: found[0] for role, found in roles.items() if found}
    wrong = {known.get(k, k): formula.format(**known) for k, formula in change.items()}
    helpers = tuple(
        replace(helper, value=wrong.get(helper.name, helper.value))
        for helper in step.helpers
    )
    grads = {name: wrong.get(name, formula) for name, formula in step.grads.items()}
    value = wrong.get("value", step.value)
    return replace(step, value=value, grads=grads, helpers=helpers)


@pytest.mark.parametrize("fields", [GATE, MODULATION], ids=str)
def test_a_product_rounded_too_late_is_noticed(fields, device, monkeypatch):
    """io precision is not float32: each product is rounded to its promotion."""
    block = next(iter(fields)).partition(".")[0]
    narrow = {"gate": "io", "modulation": "param"}[block]
    wide = make(**fields, **{f"{block}.precision": "float32"}, normalized="io")
    norm = make(**fields, **{f"{block}.precision": narrow}, normalized="io")
    assert survives(norm, text_of(norm), device, monkeypatch, torch.bfloat16)
    assert not survives(norm, text_of(wide), device, monkeypatch, torch.bfloat16)


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
    "rms_norm": ["x", "x * x * rstd"],
    "layer_norm": ["x * rstd", "centered"],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "variant, change",
    [(v, {"adjoint": a}) for v, found in ADJOINTS.items() for a in found]
    + [
        (v, {"x_hat": Value("x_hat", f)})
        for v, found in FORWARDS.items()
        for f in found
    ],
    ids=str,
)
def test_a_wrong_statistic_is_noticed(variant, change, strategy, device, monkeypatch):
    fields = {"variant": variant, "strategy": strategy}
    assert not survives_statistic(fields, change, device, monkeypatch)


UNBIASED = {"variant": "layer_norm", "statistics.variance": "unbiased"}
UNCENTERED = {"variant": "layer_norm", "statistics.centered": False}
COLUMNS = {"statistics.columns": 7, "hidden_size": LENGTH}
FACTOR = {"output": "factor", "weight": "none"}
L2 = {"variant": "l2_norm"}
CLIP = {**L2, "max_norm": 12.0, "eps_placement": "outside_sqrt"}

#: fields, part of the statistic or of its adjoint, right text, wrong text
PART_MUTANTS = [
    *(
        ({"variant": v, "eps_placement": p, "eps": 0.5}, "parts", right, wrong)
        for v in ("rms_norm", "layer_norm", "l2_norm")
        for p, right, wrong in (
            ("inside_sqrt", " + eps", ""),
            ("outside_sqrt", " + eps", ""),
            ("clamp_norm", "eps)", "0.0)"),
            ("clamp_stat", "eps)", "0.0)"),
        )
    ),
    ({"statistics.root": "sqrt"}, "parts", "sqrt(", "("),
    ({"eps_placement": "none"}, "parts", "rsqrt(", "1.0 / ("),
    ({"eps_placement": "clamp_norm", "eps": 0.5}, "adjoint_values", "0.0)", "1.0)"),
    (
        {"eps_placement": "clamp_stat", "eps": 0.5},
        "adjoint_values",
        "projection, 0.0)",
        "projection, projection)",
    ),
    (
        {"eps_placement": "clamp_stat", "eps": 0.5},
        "adjoint_values",
        "projection, 0.0)",
        "0.0, 0.0)",
    ),
    (CLIP, "parts", "12.0", "11.0"),
    (CLIP, "parts", "min(ratio, 1.0)", "ratio"),
    (CLIP, "adjoint_values", "projection / bounded", "projection"),
    (CLIP, "adjoint_values", ", 0.0)", ", projection)"),
    (
        {**L2, "eps_placement": "outside_sqrt", "eps": 0.3},
        "adjoint_values",
        "projection / share",
        "projection",
    ),
    (UNCENTERED, "adjoint", "centered", "x"),
    (UNCENTERED, "adjoint", "centered * rstd", "x_hat"),
    (FACTOR, "factor_adjoint", "-x", "x"),
    (FACTOR, "factor_adjoint", "* rstd * rstd * rstd", "* rstd * rstd"),
    (FACTOR, "factor_adjoint", " / (N)", ""),
    (COLUMNS, "adjoint", "cols < 7", "cols < 8"),
    (
        COLUMNS,
        "adjoint",
        "where(cols < 7, x_hat * projection, 0.0)",
        "x_hat * projection",
    ),
]


@pytest.mark.parametrize("index", range(len(PART_MUTANTS)))
def test_a_wrong_part_of_a_statistic_is_noticed(index, device, monkeypatch):
    fields, part, right, wrong = PART_MUTANTS[index]
    strategy = STRATEGIES[index % 3]
    norm = make(**fields, strategy=strategy)
    statistic = statistics.statistic(norm)
    made = getattr(statistic, part)

    def rewritten(value):
        return replace(value, formula=value.formula.replace(right, wrong))

    if isinstance(made, str):
        change = made.replace(right, wrong)
    else:
        change = tuple(rewritten(v) if isinstance(v, Value) else v for v in made)
    assert change != made, f"{right} is gone from {made}"
    fields = {**fields, "strategy": strategy}
    assert not survives_statistic(fields, {part: change}, device, monkeypatch)


@pytest.mark.parametrize(
    "fields, change",
    [
        (UNBIASED, {"over": "N"}),
        ({}, {"over": "N - 1"}),
        (L2, {"over": "N"}),
        (COLUMNS, {"columns": 8}),
        (COLUMNS, {"columns": None}),
        (COLUMNS, {"over": "N"}),
        (UNBIASED, {"term": "x * x"}),
    ],
    ids=str,
)
def test_a_wrong_reduction_is_noticed(fields, change, device, monkeypatch):
    norm = make(**fields, strategy="row")
    parts = list(statistics.statistic(norm).parts)
    last = max(i for i, part in enumerate(parts) if isinstance(part, Reduction))
    parts[last] = replace(parts[last], **change)
    wrong = {"parts": tuple(parts)}
    fields = {**fields, "strategy": "row"}
    assert not survives_statistic(fields, wrong, device, monkeypatch)


@pytest.mark.parametrize("fields", [UNBIASED, L2, COLUMNS], ids=str)
def test_a_wrong_count_in_the_adjoint_is_noticed(fields, device, monkeypatch):
    fields = {**fields, "strategy": "row"}
    *means, projection = statistics.statistic(make(**fields)).adjoint_means
    means = (*means, replace(projection, over="N"))
    change = {"adjoint_means": means}
    assert not survives_statistic(fields, change, device, monkeypatch)


def test_a_slope_of_the_other_eps_placement_is_noticed(device, monkeypatch):
    for variant in ("rms_norm", "layer_norm"):
        fields = {"variant": variant, "eps": 1e-2, "strategy": "row"}
        inside = statistics.statistic(make(**fields))
        change = {"adjoint": inside.adjoint, "adjoint_values": ()}
        fields["eps_placement"] = "outside_sqrt"
        assert not survives_statistic(fields, change, device, monkeypatch)


@pytest.mark.parametrize("precision", ["io", "io_stepwise"])
@pytest.mark.parametrize("variant", ["rms_norm", "layer_norm", "l2_norm"])
def test_a_rounding_of_a_statistic_left_out_is_noticed(
    variant, precision, device, monkeypatch
):
    fields = {"variant": variant, "statistics.precision": precision, "strategy": "row"}
    parts = statistics.statistic(make(**fields)).parts
    for i, part in enumerate(parts):
        # a sum with a small eps is rounded again, to the same; squares are averaged
        hidden = part.name.endswith("_io") and part.name != "mean_io"
        hidden = hidden or part.name in ("radicand", "square")
        if isinstance(part, Value) and part.rounds and not hidden:
            wide = (*parts[:i], replace(part, rounds=False), *parts[i + 1 :])
            change = {"parts": wide}
            io = torch.bfloat16
            assert not survives_statistic(fields, change, device, monkeypatch, io), part


def survives_statistic(fields, change, device, monkeypatch, io=torch.float32):
    from normgen import graph

    right = statistics.statistic

    def wrong(norm):
        return replace(right(norm), **change)

    norm = make(**fields)
    with monkeypatch.context() as patch:
        patch.setattr(graph, "statistic", wrong)
        text = text_of(norm)
    assert text != text_of(norm)
    return survives(norm, text, device, monkeypatch, io)


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
    (CHANNEL, "auto", "plane = cols * n_rows", "plane = 0 * cols * n_rows"),
    (CHANNEL, "auto", "axis=1, keep_dims=True", "keep_dims=True"),
    (CHANNEL, "auto", "range(first_row, n_rows, step)", "range(first_row, 1, step)"),
    (CHANNEL, "auto", "tl.where(mask, x - mean, 0.0)", "x - mean"),
    (GROUPS, "row", "first_col = group * GROUP_SIZE", "first_col = group * 14"),
    (MODULATION, "row", "program * sums_stride", "program * HIDDEN_SIZE"),
    *(
        (fields, strategy, f"{total} += ", f"{total} = ")
        for strategy in STRATEGIES
        for fields, total in (
            (MODULATION, "ds"),
            (MODULATION, "dt"),
            ({**POST_ADD, **BRANCH}, "dalpha"),
            ({**GROUPS, "weight": "per_group"}, "dw"),
            (HEADS, "db"),
            (BEFORE, "dw"),
        )
    ),
    # a sum that is made of what follows the row means
    *(
        (BEFORE, strategy, "if dw_partial_ptr is not None:\n", "if False:\n")
        for strategy in STRATEGIES
    ),
    # the second result
    ({"second_affine": True}, "row", "dw2 += ", "dw2 = "),
    ({"second_affine": True}, "row", "dy2 * w2", "dy * w2"),
    ({"second_affine": True}, "loop", "x_hat * w2", "x_hat * w"),
    ({**MODULATION, "modulation.second": True}, "rows", "dy2 * factor2", "dy2"),
]
#: samples, groups and heads, whose kernels begin by moving their pointers
MOVING = {
    "samples": {**LAYER, **MODULATION, "save_stats": "always", "strategy": "row"},
    "groups": {**GROUPS, **GATE, "save_stats": "always", "strategy": "row"},
    "heads": {**HEADS, **MODULATION, "strategy": "row"},
    "shared": {**GROUPS, "weight": "per_group", "bias": True, "strategy": "row"},
    "channel": {**CHANNEL, **MODULATION},
}
MOVE = re.compile(r"^ +(?P<pointer>\w+_ptr) \+= (?P<by>.+)$", re.MULTILINE)
PLACES = [
    (name, *move.span("by"), move[0].strip())
    for name, fields in MOVING.items()
    for move in MOVE.finditer(text_of(make(**fields)))
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


@pytest.mark.parametrize(
    "name, start, end", [p[:3] for p in PLACES], ids=[f"{p[0]}:{p[3]}" for p in PLACES]
)
def test_a_pointer_that_stays_is_noticed(name, start, end, device, monkeypatch):
    """No sample, group or head reads or writes in the place of the first one."""
    norm = make(**MOVING[name])
    text = text_of(norm)
    stays = f"{text[:start]}0{text[end:]}"
    assert not survives(norm, stays, device, monkeypatch)


@pytest.mark.parametrize("name", MOVING)
def test_pointers_that_move_pass(name, device, monkeypatch):
    norm = make(**MOVING[name])
    assert survives(norm, text_of(norm), device, monkeypatch)
    assert {place[0] for place in PLACES} == set(MOVING)


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
