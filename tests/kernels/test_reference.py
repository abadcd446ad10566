"""The reference equals the code of the models bit for bit, and is differentiable."""

from __future__ import annotations

import pytest
import torch
from support import eager
from support.build import build, make
from support.checks import call
from support.fields import IO, accepts, single_values
from support.inputs import case
from support.oracle import Oracle
from support.places import shape_for

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
PAIRS = [(F32, F32), (BF16, BF16), (F16, F16), (BF16, F32), (F16, F32), (F32, BF16)]
EPS = 1e-6

MODELS = {
    "llama": ({"normalized": "io", "out_dtype": "promote"}, eager.llama),
    "gemma": ({"weight_offset": 1.0}, eager.gemma),
    "t5": ({"normalized": "weight", "out_dtype": "promote"}, eager.t5),
    "olmo2": ({}, eager.olmo2),
}


def ids(pair):
    return "_".join(str(d).removeprefix("torch.") for d in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [72, 1536])
def test_the_reference_is_the_eager_code_of(model, length, pair):
    fields, expression = MODELS[model]
    norm = make(**fields, eps=EPS)
    io, parameters = pair
    inputs = case(norm, (13, length), io, parameters=parameters)
    expected = expression(inputs.x, inputs.weight, EPS)
    got = build(norm).rms_norm_reference(*inputs.arguments())
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_out_dtype_same_and_promote_differ_by_one_cast_only(pair):
    io, parameters = pair
    promoted = make(normalized="io", out_dtype="promote")
    same = make(normalized="io")
    inputs = case(same, (13, 72), io, parameters=parameters)
    wide = build(promoted).rms_norm_reference(*inputs.arguments())
    assert wide.dtype == torch.promote_types(io, parameters)
    narrow = build(same).rms_norm_reference(*inputs.arguments())
    assert narrow.dtype == io
    assert torch.equal(narrow, wide.to(io))


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_one_plus_w_in_the_dtype_of_the_weight(pair):
    norm = make(weight_offset=1.0, offset_precision="param", normalized="io", eps=EPS)
    io, parameters = pair
    inputs = case(norm, (13, 72), io, parameters=parameters)
    x_hat = eager._normalized(inputs.x, EPS).to(io)
    expected = (x_hat * (1.0 + inputs.weight)).to(io)
    assert torch.equal(build(norm).rms_norm_reference(*inputs.arguments()), expected)


@pytest.mark.parametrize("io", IO, ids=str)
@pytest.mark.parametrize("name", dict(single_values()))
def test_the_reference_follows_the_contract(name, io):
    norm = dict(single_values())[name]
    if not accepts(norm, io):
        io = getattr(torch, norm.dtype[0])
    inputs = case(norm, shape_for(norm, 7, 72), io)
    wanted = Oracle(
        norm, inputs, eager=True
    ).outputs()  # before the residual is overwritten
    outputs = call(build(norm), norm, inputs, "_reference")
    for output, expected in wanted.items():
        expected.check(outputs[output].detach(), f"reference {output}")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"normalized": "io", "weight_offset": 1.0, "bias": True},
        {"variant": "layer_norm", "bias": True, "residual": "pre_add"},
        {"variant": "layer_norm", "eps_placement": "outside_sqrt"},
        {"eps_placement": "outside_sqrt", "residual": "post_add", "eps": "argument"},
        {"residual": "pre_add", "residual_sum": "float32", "weight": "none"},
    ],
    ids=str,
)
def test_the_reference_takes_float64(fields):
    norm = make(**fields)
    inputs = case(norm, (3, 7), F32).map(lambda t: t.double().requires_grad_())
    function = getattr(build(norm), f"{norm.name}_reference")
    tensors = list(inputs.tensors().values())
    eps = () if inputs.eps is None else (inputs.eps,)
    result = function(*tensors, *eps)
    for output in result if isinstance(result, tuple) else (result,):
        assert output.dtype == torch.float64
    assert torch.autograd.gradcheck(lambda *t: function(*t, *eps), tensors)


@pytest.mark.parametrize("io", IO, ids=str)
@pytest.mark.parametrize("residual", ["none", "pre_add", "post_add"])
def test_the_gradients_of_the_reference_have_the_dtypes_of_their_tensors(residual, io):
    norm = make(residual=residual, normalized="io")
    inputs = case(norm, (3, 7), io, parameters=F32).map(
        lambda t: t.detach().requires_grad_()
    )
    y = call(build(norm), norm, inputs, "_reference")["y"]
    y.sum().backward()
    for name, tensor in inputs.tensors().items():
        assert tensor.grad.dtype == tensor.dtype, name


def test_the_reference_overwrites_the_residual_where_the_spec_says_so():
    norm = make(residual="pre_add", residual_in_place=True, backward=False)
    inputs = case(norm, (3, 7), BF16)
    expected = (inputs.x.float() + inputs.residual.float()).bfloat16()
    build(norm).rms_norm_reference(*inputs.arguments())
    assert torch.equal(inputs.residual, expected)


def test_the_reference_leaves_its_operands_alone():
    norm = make(residual="pre_add", bias=True)
    inputs = case(norm, (3, 7), BF16)
    before = {name: t.clone() for name, t in inputs.tensors().items()}
    build(norm).rms_norm_reference(*inputs.arguments())
    for name, tensor in inputs.tensors().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("parameters", ["any", "same", "bfloat16", "float16"])
@pytest.mark.parametrize("out_dtype", ["same", "promote", "float16"])
@pytest.mark.parametrize("normalized", ["none", "io", "weight"])
def test_kernel_and_reference_agree_on_every_dtype(
    normalized, out_dtype, parameters, io, device
):
    """Also where a dtype that the spec fixes meets one that a tensor brings."""
    for listed in (("float32", "bfloat16", "float16"), (str(io).split(".")[1],)):
        norm = make(
            dtype=listed,
            parameters=parameters,
            out_dtype=out_dtype,
            normalized=normalized,
            bias=True,
        )
        module = build(norm)
        own = {"any": torch.bfloat16, "same": io}
        dtype = own.get(parameters) or getattr(torch, parameters)
        x = torch.randn(3, 72, device=device).to(io)
        weight, bias = torch.rand(2, 72, device=device).to(dtype)
        y = module.rms_norm(x, weight, bias)
        expected = module.rms_norm_reference(x, weight, bias)
        assert y.dtype == expected.dtype
        # up to four roundings, each of at most an ulp of bfloat16
        torch.testing.assert_close(y, expected, rtol=2.0**-6, atol=2.0**-6)
