"""Operands of every kind: where they lie, what they cost, and what comes back."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from support.build import build, layer_class, make
from support.checks import call, check, leaves, output_names, run, upstream_for
from support.gradients import gradients
from support.inputs import case, gradient_like
from support.layouts import ROW_LAYOUTS
from support.oracle import Oracle
from support.places import operand_spaces, shape_for
from support.tables import shrink

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
LENGTH = 72


def block(name, **fields):
    return {f"{name}.{field}": value for field, value in fields.items()}


LAYER = {"variant": "layer_norm", "bias": True, "save_stats": "always"}
MODULATED = block("modulation", operands="scale_shift", per="sample")
BY_ROW = block("modulation", operands="scale_shift", per="row")
GATED = block("gate", position="after")
BRANCHED = {"residual": "post_add", **block("branch_scale", per="sample")}
GROUPS = {"group_size": 24, "hidden_size": LENGTH}

FIELDS = {
    "modulated": {**LAYER, **MODULATED},
    "modulated_by_row": {**LAYER, **BY_ROW},
    "twice_modulated": {**MODULATED, "modulation.second": True, "residual": "pre_add"},
    "two_results": {**LAYER, "second_affine": True},
    "gated": {**GATED, "normalized": "io"},
    "gated_before": block("gate", position="before", precision="io"),
    "branch_scaled": {**BRANCHED, "branch_scale.activation": "tanh"},
    "branch_channel": {"residual": "pre_add", **block("branch_scale", per="channel")},
    "heads": {"weight": "per_head", **LAYER},
    "modulated_heads": {"weight": "per_head", **MODULATED},
    "groups": {**GROUPS, **LAYER},
    "shared_groups": {**GROUPS, "weight": "per_group", "bias": True, **MODULATED},
    "weight_before": {"affine.position": "before"},
    "factor": {"output": "factor", "weight": "none"},
    "channel": {"axis": "channel", **LAYER},
    "modulated_channel": {"axis": "channel", **MODULATED, "post_activation": "silu"},
}
STRATEGIES = ("row", "rows", "loop")


def norm_of(name, strategy="row", **fields):
    channel = FIELDS[name].get("axis") == "channel"
    strategy = "auto" if channel else strategy
    return make(name="some_norm", **FIELDS[name], strategy=strategy, **fields)


def several_programs(module, norm, device, monkeypatch, programs=3, count=6, **options):
    """Lets each sample or group have several programs, whatever the machine."""
    place = torch.empty(0, device=device).device
    shrink(monkeypatch, module, norm, programs=programs, **options)
    monkeypatch.setitem(module._MULTIPROCESSOR_COUNTS, place, count)


@pytest.mark.parametrize("rows", [1, 2, 5, 17, 40])
@pytest.mark.parametrize("name", FIELDS)
def test_several_programs_share_a_sample(name, rows, device, monkeypatch):
    norm = norm_of(name, STRATEGIES[rows % 3])
    module = build(norm)
    small = {"rows": {"ROWS_PER_PROGRAM": 2}, "loop": {"BLOCK_SIZE": 32}}
    options = small.get(norm.strategy, {})
    several_programs(module, norm, device, monkeypatch, **options)
    inputs = case(norm, shape_for(norm, rows, LENGTH), F32, device=device)
    check(module, norm, inputs, name)


@pytest.mark.parametrize("length", [1, 7, 40, 100, 130])
@pytest.mark.parametrize("io", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", [n for n in FIELDS if "group" not in n])
def test_rows_of_odd_lengths(name, io, length, device):
    for strategy in STRATEGIES[: 1 if "channel" in name else 3]:
        norm = norm_of(name, strategy)
        inputs = case(norm, shape_for(norm, 3, length), io, device=device)
        check(build(norm), norm, inputs, f"{name} {strategy} {length}")


@pytest.mark.parametrize("length", [1, 3, 16, 40])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["groups", "shared_groups"])
def test_groups_of_odd_lengths(name, strategy, length, device):
    fields = {**FIELDS[name], "group_size": length, "hidden_size": 3 * length}
    norm = make(**fields, strategy=strategy)
    inputs = case(norm, shape_for(norm, 5, 3 * length), BF16, device=device)
    check(build(norm), norm, inputs, name)


@pytest.mark.parametrize("name", FIELDS)
def test_no_rows_and_no_samples(name, device):
    norm = norm_of(name)
    shape = list(shape_for(norm, 4, LENGTH))
    row_axes = [i for i, size in enumerate(shape) if size != LENGTH]
    if norm.affine.weight == "per_head":
        row_axes = row_axes[:-1]  # no heads would be another weight
    for axis in row_axes:
        empty = [*shape[:axis], 0, *shape[axis + 1 :]]
        inputs = case(norm, tuple(empty), BF16, device=device)
        done = check(build(norm), norm, inputs, f"{name} {empty}")
        for operand, gradient in done.gradients.items():
            assert gradient is not None and not gradient.any(), operand


@pytest.mark.parametrize("name", FIELDS)
def test_leading_dimensions(name, device):
    norm = norm_of(name)
    if norm.axis == "channel":
        shapes = [(2, LENGTH), (2, LENGTH, 5), (2, LENGTH, 3, 2), (1, LENGTH, 2, 1, 3)]
    else:
        heads = (3,) if norm.affine.weight == "per_head" else ()
        leading = [(1,), (4,), (2, 3), (2, 1, 3), (1, 2, 2, 2)]
        if "sample" not in operand_spaces(norm).values():
            leading.append(())
        shapes = [(*lead, *heads, LENGTH) for lead in leading]
    for shape in shapes:
        inputs = case(norm, shape, F16, device=device)
        check(build(norm), norm, inputs, f"{name} {shape}")


@pytest.mark.parametrize("layout", ROW_LAYOUTS)
@pytest.mark.parametrize(
    "name", ["modulated", "gated", "modulated_by_row", "groups", "twice_modulated"]
)
def test_operands_of_any_layout(name, layout, device):
    norm = norm_of(name, STRATEGIES[len(layout) % 3])
    inputs = case(norm, (3, 4, LENGTH), F32, device=device)
    spaces = {"x": "element", **operand_spaces(norm)}
    change = ROW_LAYOUTS[layout]
    inputs = inputs.with_tensors(
        **{
            name: change(tensor)
            for name, tensor in inputs.tensors().items()
            if spaces[name] in ("element", "sample")
        }
    )
    check(build(norm), norm, inputs, f"{name} {layout}")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_queries_and_keys_of_one_projection_are_not_copied(
    strategy, device, monkeypatch
):
    norm = norm_of("heads", strategy)
    module = build(norm)
    batch, length, heads, size = 2, 5, 3, 32
    fused = torch.randn(batch, length, 3 * heads * size, device=device)
    query = fused[..., : heads * size].view(batch, length, heads, size)
    key = fused[..., heads * size : 2 * heads * size].view(batch, length, heads, size)
    for view in (query, key):
        inputs = case(norm, (batch, length, heads, size), F32, device=device)
        inputs = inputs.with_tensors(x=view)
        check(module, norm, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "contiguous", refuse)
            patch.setattr(torch.Tensor, "clone", refuse)
            with torch.no_grad():
                call(module, norm, inputs)


def refuse(*_, **__):
    raise AssertionError("the projection is copied")


@pytest.mark.parametrize("shape", [(2, 24, 6, 5), (2, 24, 4, 4), (3, 24, 2, 3, 2)])
@pytest.mark.parametrize("name", ["channel", "modulated_channel"])
def test_a_channel_axis_in_any_memory_format(name, shape, device):
    norm = norm_of(name)
    inputs = case(norm, shape, F32, device=device)
    wanted = Oracle(norm, inputs)
    upstream = upstream_for(norm, wanted)
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    changed = {
        "channels_last": inputs.x.contiguous(memory_format=last),
        "transposed": inputs.x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "sliced": torch.stack([inputs.x, inputs.x], -1)[..., 0],
        "expanded": inputs.x[:1, :, :1].expand(inputs.x.shape),
    }
    for what, x in changed.items():
        given = inputs.with_tensors(x=x)
        oracle = Oracle(norm, given)
        done = run(build(norm), norm, given, upstream)
        for output, expected in oracle.outputs().items():
            expected.check(done.outputs[output], f"{what} {output}")
        for operand, expected in gradients(oracle, upstream).items():
            expected.check(done.gradients[operand], f"{what} d_{operand}")


def test_the_channel_axis_is_the_last_one_moved(device):
    channel, last = make(axis="channel", **LAYER), make(**LAYER)
    inputs = case(channel, (2, LENGTH, 3, 5), F32, device=device)
    moved = inputs.with_tensors(x=inputs.x.movedim(1, -1).contiguous())
    outputs = call(build(channel), channel, inputs)
    expected = call(build(last), last, moved)
    torch.testing.assert_close(outputs["y"].movedim(1, -1), expected["y"])
    torch.testing.assert_close(outputs["rstd"], expected["rstd"])


@pytest.mark.parametrize("name", ["modulated", "modulated_heads", "branch_scaled"])
def test_an_operand_of_a_sample_may_have_dimensions_of_one(name, device):
    norm = norm_of(name)
    heads = (3,) if "heads" in name else ()
    inputs = case(norm, (2, 3, *heads, LENGTH), F32, device=device)
    plain = call(build(norm), norm, inputs)
    upstream = upstream_for(norm, Oracle(norm, inputs))
    wide = {
        operand: inputs.tensors()[operand].view(2, *[1] * (1 + len(heads)), LENGTH)
        for operand, space in operand_spaces(norm).items()
        if space == "sample"
    }
    done = run(build(norm), norm, inputs.with_tensors(**wide), upstream)
    same = run(build(norm), norm, inputs, upstream)
    for output, value in done.outputs.items():
        assert torch.equal(value, plain[output]), output
    for operand, gradient in done.gradients.items():
        own = same.gradients[operand]
        shape = (wide.get(operand, own)).shape
        assert gradient.shape == shape, operand
        assert torch.equal(gradient.reshape(own.shape), own), operand


WRONG = {
    "modulated": ("scale", "shift"),
    "modulated_by_row": ("scale", "shift"),
    "twice_modulated": ("scale2", "shift2", "residual"),
    "two_results": ("weight2", "bias2"),
    "gated": ("gate",),
    "branch_scaled": ("branch_scale",),
    "heads": ("weight", "bias"),
    "shared_groups": ("weight", "scale"),
    "modulated_channel": ("scale", "weight"),
}


@pytest.mark.parametrize(
    "name, operand", [(name, o) for name, found in WRONG.items() for o in found]
)
@pytest.mark.parametrize("wrong", ["length", "samples", "rank", "dtype", "none"])
def test_a_wrong_operand_is_named(name, operand, wrong, device):
    norm = norm_of(name)
    inputs = case(norm, shape_for(norm, 4, LENGTH), F32, device=device)
    tensor = inputs.tensors()[operand]
    changed = {
        "length": tensor[..., :-1],
        "samples": torch.cat([tensor, tensor]),
        "rank": tensor[None, None],
        "dtype": tensor.double(),
        "none": None,
    }[wrong]
    arguments = [changed if t is tensor else t for t in inputs.arguments()]
    error = TypeError if wrong in ("dtype", "none") else ValueError
    with pytest.raises(error, match=rf"^{operand}: expected"):
        build(norm).some_norm(*arguments)


@pytest.mark.parametrize(
    "shape, what",
    [((LENGTH,), "samples"), ((2, 3, LENGTH + 1), str(LENGTH + 1))],
)
def test_a_wrong_x_is_told_what_it_should_be(shape, what, device):
    norm = make(name="some_norm", **MODULATED, hidden_size=LENGTH)
    inputs = case(norm, (2, 3, LENGTH), F32, device=device)
    x = torch.zeros(shape, device=device)
    with pytest.raises(ValueError, match=rf"^x: expected.*{what}"):
        build(norm).some_norm(*inputs.with_tensors(x=x).arguments())


@pytest.mark.parametrize("others", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("io", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize(
    "name", ["modulated", "gated", "gated_before", "branch_scaled"]
)
def test_operands_of_any_dtype(name, io, others, device):
    norm = norm_of(name, "rows")
    inputs = case(norm, shape_for(norm, 5, LENGTH), io, device=device, others=others)
    check(build(norm), norm, inputs, name)


@pytest.mark.parametrize("name", ["twice_modulated", "two_results", "branch_channel"])
def test_a_gradient_that_does_not_come_is_zero(name, device):
    norm = norm_of(name)
    inputs = case(norm, shape_for(norm, 4, LENGTH), F32, device=device)
    oracle = Oracle(norm, inputs)
    given = upstream_for(norm, oracle)
    for size in range(1, len(given)):
        for some in itertools.combinations(given, size):
            upstream = {output: given[output] for output in some}
            done = run(build(norm), norm, inputs, upstream)
            for operand, expected in gradients(oracle, upstream).items():
                gradient = done.gradients[operand]
                if gradient is None:  # the graph knows that it is zero
                    assert (expected.bounds.low <= 0).all()
                    continue
                expected.check(gradient, f"d_{operand} of {some}")


@pytest.mark.parametrize(
    "name",
    ["modulated", "gated", "two_results", "branch_scaled", "gated_before", "heads"],
)
def test_only_what_requires_a_gradient_gets_one(name, device):
    norm = norm_of(name)
    module = build(norm)
    inputs = case(norm, shape_for(norm, 3, LENGTH), F32, device=device)
    oracle = Oracle(norm, inputs)
    upstream = upstream_for(norm, oracle)
    expected = gradients(oracle, upstream)
    names = tuple(inputs.tensors())
    for size in range(1, len(names) + 1):
        for wanted in itertools.combinations(names, size):
            outputs = call(module, norm, leaves(inputs, wanted))
            given = {o: g for o, g in upstream.items() if outputs[o].requires_grad}
            assert given, wanted
            done = run(module, norm, inputs, given, requires_grad=wanted)
            for operand, gradient in done.gradients.items():
                if operand not in wanted:
                    assert gradient is None, operand
                elif given.keys() == upstream.keys():
                    expected[operand].check(gradient, f"d_{operand} of {wanted}")


@pytest.mark.parametrize("name", FIELDS)
def test_results_and_gradients_are_bitwise_repeatable(name, device):
    norm = norm_of(name, "rows")
    module = build(norm)
    inputs = case(norm, shape_for(norm, 19, LENGTH), BF16, device=device)
    upstream = upstream_for(norm, Oracle(norm, inputs))
    first, second = (run(module, norm, inputs, upstream) for _ in range(2))
    for output, value in first.outputs.items():
        assert torch.equal(value, second.outputs[output]), output
    for operand, gradient in first.gradients.items():
        assert torch.equal(gradient, second.gradients[operand]), operand


@pytest.mark.parametrize("name", FIELDS)
def test_a_sample_does_not_depend_on_its_batch(name, device):
    norm = norm_of(name, "rows")
    module = build(norm)
    shape = shape_for(norm, 5, LENGTH)
    inputs = case(norm, shape, BF16, device=device)
    upstream = upstream_for(norm, Oracle(norm, inputs))
    everything = run(module, norm, inputs, upstream)
    spaces = {"x": "element", **operand_spaces(norm)}
    moving = {n for n, space in spaces.items() if space in ("element", "sample")}
    for some in (slice(0, 1), slice(1, 3)):
        few = {n: t[some] for n, t in inputs.tensors().items() if n in moving}
        alone = run(
            module,
            norm,
            inputs.with_tensors(**few),
            {n: g[some] for n, g in upstream.items()},
        )
        for output, value in alone.outputs.items():
            assert torch.equal(value, everything.outputs[output][some]), output
        for operand in moving:
            gradient = everything.gradients[operand][some]
            assert torch.equal(alone.gradients[operand], gradient), operand


@pytest.mark.parametrize("name", ["groups", "heads", "channel"])
def test_statistics_have_the_shape_of_what_they_are_of(name, device):
    norm = norm_of(name)
    shape = {
        "groups": (2, 5, LENGTH),
        "heads": (2, 5, 3, LENGTH),
        "channel": (2, LENGTH, 5, 3),
    }[name]
    outputs = call(build(norm), norm, case(norm, shape, F16, device=device))
    wanted = {"groups": (2, 5, 3), "heads": (2, 5, 3), "channel": (2, 5, 3)}[name]
    for statistic in ("mean", "rstd"):
        assert outputs[statistic].shape == wanted
        assert outputs[statistic].dtype == F32


def test_the_results_come_in_their_order(device):
    fields = {**MODULATED, "modulation.second": True, "residual": "pre_add"}
    norm = make(**fields, variant="layer_norm", save_stats="always")
    names = output_names(norm)
    assert names == ["y", "y2", "residual_sum", "mean", "rstd"]
    result = build(norm).layer_norm(
        *case(norm, (2, 3, LENGTH), F32, device=device).arguments()
    )
    assert len(result) == len(names)


def test_a_residual_gradient_does_not_share_memory(device):
    norm = norm_of("branch_scaled")
    inputs = leaves(case(norm, (2, 3, LENGTH), F32, device=device))
    y = call(build(norm), norm, inputs)["y"]
    dy = gradient_like(y.detach())
    y.backward(dy)
    kept = inputs.residual.grad.clone()
    dy.zero_()
    inputs.x.grad.zero_()
    assert torch.equal(inputs.residual.grad, kept)


MODULES = {
    "heads": {"weight": (3, LENGTH), "bias": (3, LENGTH)},
    "shared_groups": {"weight": (24,), "bias": (24,)},
    "groups": {"weight": (LENGTH,), "bias": (LENGTH,)},
    "two_results": dict.fromkeys(("weight", "bias", "weight2", "bias2"), (LENGTH,)),
    "branch_channel": {"weight": (LENGTH,), "branch_scale": (LENGTH,)},
    "modulated": {"weight": (LENGTH,), "bias": (LENGTH,)},
    "gated": {"weight": (LENGTH,)},
    "channel": {"weight": (LENGTH,), "bias": (LENGTH,)},
    "factor": {},
}


def layer_of(name, device, **fields):
    norm = norm_of(name, **fields)
    heads = {"heads": 3} if norm.affine.weight == "per_head" else {}
    layer = layer_class(build(norm), norm)
    return norm, layer(hidden_size=LENGTH, **heads, device=device)


@pytest.mark.parametrize("name", MODULES)
def test_the_parameters_of_a_module(name, device):
    norm, layer = layer_of(name, device)
    shapes = {key: tuple(p.shape) for key, p in layer.named_parameters()}
    assert shapes == MODULES[name]
    assert list(layer.state_dict()) == list(shapes)
    for key, parameter in layer.named_parameters():
        start = 0.0 if "bias" in key else 1.0
        assert torch.equal(parameter, torch.full_like(parameter, start)), key
    assert str(LENGTH) in repr(layer)
    assert ("3" in layer.extra_repr()) or norm.affine.weight != "per_head"
    _, other = layer_of(name, device)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_()
    other.load_state_dict(layer.state_dict(), strict=True)
    for key, value in other.state_dict().items():
        assert torch.equal(value, layer.state_dict()[key]), key


@pytest.mark.parametrize("name", MODULES)
def test_a_module_calls_its_function_with_its_parameters(name, device):
    norm, layer = layer_of(name, device)
    inputs = case(norm, shape_for(norm, 4, LENGTH), F32, device=device)
    own = dict(layer.named_parameters())
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(inputs.tensors()[key])
        given = [t for key, t in inputs.tensors().items() if key not in own]
        got = layer(*given)
    expected = tuple(call(build(norm), norm, inputs).values())
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        assert torch.equal(a, b)


def test_an_offset_starts_both_weights_neutral(device):
    _, layer = layer_of("two_results", device, weight_offset=1.0)
    assert not layer.weight.any()
    assert not layer.weight2.any()


@pytest.mark.parametrize("heads", [0, -1, 2.0, "3", None])
def test_a_number_of_heads_that_is_none_is_refused(heads):
    norm = norm_of("heads")
    with pytest.raises((TypeError, ValueError), match="heads"):
        layer_class(build(norm), norm)(hidden_size=LENGTH, heads=heads)


@pytest.mark.parametrize("name", ["modulated", "gated", "channel", "heads"])
def test_autocast_does_not_change_dtypes(name, device):
    norm = norm_of(name)
    inputs = case(norm, shape_for(norm, 3, LENGTH), BF16, device=device, others=F32)
    plain = call(build(norm), norm, inputs)
    with torch.autocast(device, BF16), warnings.catch_warnings():
        warnings.simplefilter("error")
        same = call(build(norm), norm, inputs)
    for output, value in plain.items():
        assert torch.equal(value, same[output]), output
