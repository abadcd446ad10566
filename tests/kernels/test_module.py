"""The nn.Module is a drop-in: names, shapes and state of torch's and Hugging Face's."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
from support.build import build, layer_class, make
from support.checks import call
from support.inputs import case

LENGTH = 72
SPECS = {
    "rms_norm": {},
    "gemma": {"weight_offset": 1.0},
    "layer_norm": {"variant": "layer_norm", "bias": True},
    "layer_norm without affine": {"variant": "layer_norm", "weight": "none"},
}


def new(device="cpu", **fields):
    norm = make(**fields)
    return layer_class(build(norm), norm)(LENGTH, device=device)


def torchs(name):
    return {
        "rms_norm": lambda: torch.nn.RMSNorm(LENGTH),
        "gemma": lambda: torch.nn.RMSNorm(LENGTH),
        "layer_norm": lambda: torch.nn.LayerNorm(LENGTH),
        "layer_norm without affine": lambda: torch.nn.LayerNorm(
            LENGTH, elementwise_affine=False
        ),
    }[name]()


def test_names_are_those_of_the_entry():
    assert layer_class(build(make()), make()).__name__ == "RMSNorm"
    centered = make(variant="layer_norm")
    assert layer_class(build(centered), centered).__name__ == "LayerNorm"


@pytest.mark.parametrize("name", SPECS)
def test_state_dicts_load_both_ways(name):
    ours, theirs = new(**SPECS[name]), torchs(name)
    shapes = {key: value.shape for key, value in ours.state_dict().items()}
    assert shapes == {key: value.shape for key, value in theirs.state_dict().items()}
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value)
    theirs.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize("name", SPECS)
def test_a_new_module_is_neutral(name, device):
    layer = new(device, **SPECS[name])
    offset = SPECS[name].get("weight_offset", 0.0)
    for key, parameter in layer.named_parameters():
        start = 1.0 - offset if key == "weight" else 0.0
        assert torch.equal(parameter, torch.full_like(parameter, start)), key
    x = torch.randn(5, LENGTH, device=device)
    square = (x - x.mean(-1, keepdim=True)) if "layer" in name else x
    expected = square * (square.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(layer(x), expected)


def test_reset_parameters_makes_it_neutral_again():
    layer = new(**SPECS["layer_norm"])
    with torch.no_grad():
        layer.weight.fill_(3)
        layer.bias.fill_(3)
    layer.reset_parameters()
    assert torch.equal(layer.weight, torch.ones(LENGTH))
    assert torch.equal(layer.bias, torch.zeros(LENGTH))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_device_and_dtype_are_taken(dtype, device):
    norm = make(bias=True)
    layer = layer_class(build(norm), norm)(LENGTH, device=device, dtype=dtype)
    for parameter in layer.parameters():
        assert parameter.dtype == dtype
        assert parameter.device.type == device
    meta = layer_class(build(norm), norm)(LENGTH, device="meta")
    assert meta.weight.is_meta


def test_device_and_dtype_are_keywords():
    norm = make()
    signature = inspect.signature(layer_class(build(norm), norm))
    for name in ("device", "dtype"):
        assert signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert signature.parameters[name].default is None


@pytest.mark.parametrize("parameters", ["float32", "bfloat16"])
def test_parameters_start_in_the_dtype_that_the_spec_fixes(parameters):
    assert new(parameters=parameters).weight.dtype == getattr(torch, parameters)


@pytest.mark.parametrize("copies", ["deepcopy", "pickle", "save"])
def test_a_module_can_be_copied(copies, device):
    layer = new(device, **SPECS["layer_norm"])
    with torch.no_grad():
        layer.weight.uniform_()
    if copies == "deepcopy":
        other = copy.deepcopy(layer)
    elif copies == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    else:
        stream = io.BytesIO()
        torch.save(layer.state_dict(), stream)
        stream.seek(0)
        other = new(device, **SPECS["layer_norm"])
        other.load_state_dict(torch.load(stream))
    x = torch.randn(3, LENGTH, device=device)
    assert torch.equal(layer(x), other(x))
    assert other.weight is not layer.weight


@pytest.mark.parametrize("change", ["half", "bfloat16", "float"])
def test_a_module_can_be_cast(change, device):
    layer = getattr(new(device, **SPECS["layer_norm"]), change)()
    x = getattr(torch.randn(3, LENGTH, device=device), change)()
    assert layer.weight.dtype == x.dtype
    assert layer(x).dtype == x.dtype


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"variant": "layer_norm", "bias": True},
        {"residual": "pre_add"},
        {"residual": "post_add", "bias": True},
        {"residual": "pre_add", "save_stats": "always", "weight": "none"},
    ],
    ids=str,
)
def test_a_module_calls_the_function(fields, device):
    norm = make(**fields)
    layer = layer_class(build(norm), norm)(LENGTH, device=device)
    inputs = case(norm, (5, LENGTH), torch.float32, device=device)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(inputs.tensors()[name])
    operands = [inputs.x] + ([] if inputs.residual is None else [inputs.residual])
    got = layer(*operands)
    expected = tuple(call(build(norm), norm, inputs).values())
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        assert torch.equal(a, b)


def test_its_text_says_what_it_is():
    text = repr(new(**SPECS["layer_norm"]))
    assert text.startswith("LayerNorm(")
    assert str(LENGTH) in text
    assert "1e-05" in text
    assert "\n" not in text


def test_a_module_of_one_length_needs_no_argument():
    norm = make(hidden_size=LENGTH)
    layer = layer_class(build(norm), norm)
    try:
        assert layer().weight.shape == (LENGTH,)
    except TypeError:
        assert layer(LENGTH).weight.shape == (LENGTH,)


def test_a_module_of_another_length_is_refused_at_once():
    norm = make(hidden_size=(LENGTH, 80))
    layer = layer_class(build(norm), norm)
    with pytest.raises(ValueError, match=r"hidden_size.*73"):
        layer(73)


@pytest.mark.parametrize("length", [0, -1, 2.0, "72", None, (4, 18)])
def test_a_hidden_size_that_is_none_is_refused(length):
    norm = make()
    with pytest.raises((TypeError, ValueError), match="hidden_size"):
        layer_class(build(norm), norm)(length)


@pytest.mark.parametrize("length", ["dynamic", LENGTH, (LENGTH, 80)], ids=str)
def test_an_eps_that_is_an_argument_is_the_modules(length, device):
    norm = make(eps="argument", hidden_size=length)
    layer = layer_class(build(norm), norm)(LENGTH, eps=0.25, device=device)
    assert "0.25" in repr(layer)
    x = torch.randn(3, LENGTH, device=device)
    expected = build(norm).rms_norm(x, layer.weight, 0.25)
    assert torch.equal(layer(x), expected)


def test_training_and_evaluation_are_the_same(device):
    layer = new(device)
    x = torch.randn(3, LENGTH, device=device)
    assert torch.equal(layer.eval()(x), layer.train()(x))
