"""A wrong argument is refused before any launch, by name, with what was expected."""

from __future__ import annotations

import pytest
import torch
from support.build import build, layer_class, make
from support.inputs import case

NORM = make(variant="layer_norm", bias=True, residual="pre_add", eps="argument")
OPERANDS = ("x", "weight", "bias", "residual")
SHAPE = (4, 72)


def arguments(device, **changes):
    inputs = case(NORM, SHAPE, torch.bfloat16, device=device)
    named = {**inputs.tensors(), "eps": 1e-5}
    changed = {
        name: change(named[name]) if callable(change) else change
        for name, change in changes.items()
    }
    return list({**named, **changed}.values())


def refuses(device, error, *words, norm=NORM, suffix="", **changes):
    """The call raises ``error``, and its one-line message has all the words."""
    function = getattr(build(norm), norm.name + suffix)
    with pytest.raises(error) as caught:
        function(*arguments(device, **changes))
    message = str(caught.value)
    for word in words:
        assert str(word) in message, message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("value", [None, 3.0, [1.0, 2.0], "x"], ids=repr)
def test_an_operand_that_is_no_tensor(operand, value, device):
    refuses(device, TypeError, operand, "torch.Tensor", **{operand: value})


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int32, torch.bool, torch.complex64], ids=str
)
def test_an_operand_of_a_dtype_that_no_kernel_takes(operand, dtype, device):
    change = {operand: lambda t: t.to(dtype)}
    refuses(device, TypeError, operand, dtype, **change)


def test_a_residual_of_another_dtype(device):
    change = {"residual": lambda t: t.float()}
    refuses(device, TypeError, "residual", "float32", "bfloat16", **change)


@pytest.mark.parametrize(
    "shape", [(71,), (73,), (1, 72), (2, 72), (72, 1), (1,), ()], ids=str
)
@pytest.mark.parametrize("operand", ["weight", "bias"])
def test_a_parameter_of_another_shape(operand, shape, device):
    change = {operand: lambda t: t.new_ones(shape)}
    message = refuses(device, ValueError, operand, "[72]", **change)
    assert f"got {list(shape)}" in message


@pytest.mark.parametrize(
    "shape",
    [(3, 72), (1, 72), (72,), (4, 71), (4, 1), (4, 1, 72), (2, 2, 72), (5, 72), ()],
    ids=str,
)
def test_a_residual_of_another_shape(shape, device):
    change = {"residual": lambda t: t.new_ones(shape)}
    message = refuses(device, ValueError, "residual", list(SHAPE), **change)
    assert f"got {list(shape)}" in message


def test_an_x_without_dimensions(device):
    refuses(device, ValueError, "x", x=lambda t: t.new_ones(()))


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 0)], ids=str)
def test_rows_without_columns(shape, device):
    norm = make(weight="none")
    with pytest.raises(ValueError, match=r"\bx\b"):
        build(norm).rms_norm(torch.empty(shape, device=device))


@pytest.mark.parametrize("operand", ["weight", "bias", "residual"])
def test_an_operand_on_another_device(operand, device):
    change = {operand: lambda t: t.to("meta")}
    refuses(device, ValueError, operand, "meta", device, **change)


@pytest.mark.gpu
@pytest.mark.parametrize("operand", ["weight", "bias", "residual"])
def test_an_operand_on_the_cpu(operand, device):
    change = {operand: lambda t: t.cpu()}
    refuses(device, ValueError, operand, "cpu", "cuda", **change)


@pytest.mark.parametrize("eps", [None, "1e-5", [1e-5]], ids=repr)
def test_an_eps_that_is_no_number(eps, device):
    refuses(device, TypeError, "eps", eps=eps)


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan"), float("inf")])
def test_an_eps_that_makes_no_sense(eps, device):
    """Either refused by name, or taken as torch takes it: no hidden other value."""
    norm = make(eps="argument", weight="none")
    x = case(norm, SHAPE, torch.float32, device=device).x
    try:
        got = build(norm).rms_norm(x, eps)
    except ValueError as error:
        assert "eps" in str(error)
        return
    square = x.square().mean(-1, keepdim=True)
    torch.testing.assert_close(got, x * (square + eps).rsqrt(), equal_nan=True)


@pytest.mark.parametrize("eps", [1, 1e-6, torch.tensor(1e-6).item()])
def test_an_eps_may_be_any_number(eps, device):
    norm = make(eps="argument", weight="none")
    x = case(norm, SHAPE, torch.float32, device=device).x
    expected = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    torch.testing.assert_close(build(norm).rms_norm(x, eps), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_x_of_a_dtype_that_the_spec_does_not_list(dtype, device):
    norm = make(dtype=(dtype,))
    for other in {"float32", "bfloat16", "float16"} - {dtype}:
        inputs = case(norm, SHAPE, getattr(torch, other), device=device)
        with pytest.raises(TypeError, match=rf"\bx\b.*{other}") as caught:
            build(norm).rms_norm(*inputs.arguments())
        assert dtype in str(caught.value)


@pytest.mark.parametrize("asked", ["same", "float32", "bfloat16", "float16"])
def test_a_parameter_of_a_dtype_that_the_spec_does_not_take(asked, device):
    norm = make(parameters=asked, bias=True)
    takes = torch.float16 if asked == "same" else getattr(torch, asked)
    inputs = case(norm, SHAPE, torch.float16, device=device)
    for operand in ("weight", "bias"):
        for other in {torch.float32, torch.bfloat16, torch.float16} - {takes}:
            changed = inputs.with_tensors(
                **{operand: inputs.tensors()[operand].to(other)}
            )
            with pytest.raises(TypeError, match=operand):
                build(norm).rms_norm(*changed.arguments())


def test_the_number_of_arguments_is_pythons_own_error(device):
    inputs = case(NORM, SHAPE, torch.float32, device=device)
    with pytest.raises(TypeError):
        build(NORM).layer_norm(inputs.x)
    with pytest.raises(TypeError):
        build(make()).rms_norm(inputs.x, inputs.weight, inputs.bias)


def test_arguments_may_be_named(device):
    inputs = case(NORM, SHAPE, torch.float32, device=device)
    by_name = build(NORM).layer_norm(**inputs.tensors(), eps=1e-5)
    by_place = build(NORM).layer_norm(*inputs.tensors().values(), 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(by_name, by_place, strict=True))


def test_the_module_refuses_what_the_function_refuses(device):
    norm = make(variant="layer_norm", bias=True)
    layer = layer_class(build(norm), norm)(72, device=device)
    with pytest.raises(ValueError, match="weight"):
        layer(torch.ones(4, 71, device=device))
    with pytest.raises(TypeError, match="x"):
        layer(torch.ones(4, 72, device=device, dtype=torch.float64))


def test_nothing_is_checked_by_assert():
    import ast

    from support.build import text_of

    tree = ast.parse(text_of(NORM, make()))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
