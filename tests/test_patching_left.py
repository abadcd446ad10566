"""Which norms ``patch`` takes, and what its report says of those that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from support.build import make
from support.toys import (
    LAYER_NORM,
    LLAMA,
    RMS,
    DerivedNorm,
    GatedNorm,
    H,
    HeadsNorm,
    ToyNorm,
    UnitNorm,
    generated,
    path,
)


@pytest.fixture
def norms() -> ModuleType:
    return generated(RMS)


def reason(norms: ModuleType, norm: torch.nn.Module) -> str:
    """Why a norm is left."""
    model = torch.nn.Sequential(norm)
    report = norms.patch(model)
    assert model[0] is norm
    assert not report.replaced
    ((name, why),) = report.left
    assert name == "0"
    return why


def _with_hook(norm: torch.nn.Module) -> torch.nn.Module:
    norm.register_forward_pre_hook(lambda *_: None)
    return norm


def _with_state_hook(norm: torch.nn.Module) -> torch.nn.Module:
    norm.register_state_dict_post_hook(lambda *_: None)
    return norm


def _with_buffer(norm: torch.nn.Module) -> torch.nn.Module:
    norm.register_buffer("count", torch.zeros(1))
    return norm


def _with_module(norm: torch.nn.Module) -> torch.nn.Module:
    norm.inner = torch.nn.Identity()
    return norm


def _with_bias(norm: torch.nn.Module) -> torch.nn.Module:
    norm.bias = torch.nn.Parameter(torch.zeros(H))
    return norm


def _without_weight(norm: torch.nn.Module) -> torch.nn.Module:
    norm.weight = None
    return norm


def _wrapped(norm: torch.nn.Module) -> torch.nn.Module:
    forward = norm.forward
    norm.forward = lambda x: forward(x)
    return norm


def _compiled(norm: torch.nn.Module) -> torch.nn.Module:
    norm.compile(backend="eager")
    return norm


def _without_eps(norm: torch.nn.Module) -> torch.nn.Module:
    del norm.variance_epsilon
    return norm


def _with_two_eps(norm: torch.nn.Module) -> torch.nn.Module:
    norm.eps = 1e-5
    return norm


class Quantized(torch.nn.Parameter):
    """No plain parameter."""


def _with_parameter(parameter: torch.nn.Parameter) -> torch.nn.Module:
    norm = ToyNorm(H)
    norm.weight = parameter
    return norm


def _parametrized(norm: torch.nn.Module) -> torch.nn.Module:
    parametrize = torch.nn.utils.parametrize
    return parametrize.register_parametrization(norm, "weight", torch.nn.Identity())


HERE = ToyNorm.__module__
LEFT: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    "eps": (
        lambda: ToyNorm(H, eps=1e-5),
        "rms_norm: eps: expected 1e-06, got 1e-05",
    ),
    "eps none": (
        lambda: ToyNorm(H, eps=None),
        "rms_norm: eps: expected 1e-06, got None",
    ),
    "two eps": (
        lambda: _with_two_eps(ToyNorm(H)),
        "rms_norm: eps: expected 1e-06, got 1e-05",
    ),
    "hidden size": (
        lambda: ToyNorm(4),
        "rms_norm: hidden_size: expected 8, got 4",
    ),
    "shape": (
        lambda: HeadsNormNamedToy(2, H),
        "rms_norm: weight: expected shape [8], got [2, 8]",
    ),
    "no weight": (
        lambda: _without_weight(ToyNorm(H)),
        "rms_norm: weight: expected a parameter with columns, got none",
    ),
    "scalar": (
        lambda: _with_parameter(torch.nn.Parameter(torch.ones(()))),
        "rms_norm: weight: expected a parameter with columns, got none",
    ),
    "dtype": (
        lambda: ToyNorm(H).double(),
        "rms_norm: weight: expected torch.float32 or torch.bfloat16 or torch.float16, "
        "got torch.float64",
    ),
    "kind of parameter": (
        lambda: _with_parameter(Quantized(torch.ones(H))),
        "rms_norm: weight: expected a torch.nn.Parameter, got Quantized",
    ),
    "more parameters": (
        lambda: _with_bias(ToyNorm(H)),
        "rms_norm: parameters: expected weight, got weight, bias",
    ),
    "hook": (lambda: _with_hook(ToyNorm(H)), "has hooks (_forward_pre_hooks)"),
    "state hook": (
        lambda: _with_state_hook(ToyNorm(H)),
        "has hooks (_state_dict_hooks)",
    ),
    "buffer": (lambda: _with_buffer(ToyNorm(H)), "has buffers or modules (count)"),
    "module": (lambda: _with_module(ToyNorm(H)), "has buffers or modules (inner)"),
    "wrapped": (
        lambda: _wrapped(ToyNorm(H)),
        "its forward is wrapped or compiled",
    ),
    "compiled": (
        lambda: _compiled(ToyNorm(H)),
        "its forward is wrapped or compiled",
    ),
    "derived": (
        lambda: DerivedNorm(H),
        f"its class, {HERE}.DerivedNorm, is only derived from {HERE}.ToyNorm",
    ),
    "parametrized": (
        lambda: _parametrized(ToyNorm(H)),
        "its class, torch.nn.utils.parametrize.ParametrizedToyNorm, is only derived "
        f"from {HERE}.ToyNorm",
    ),
}


def HeadsNormNamedToy(heads: int, hidden_size: int) -> torch.nn.Module:  # noqa: N802
    return _with_parameter(torch.nn.Parameter(torch.ones(heads, hidden_size)))


@pytest.mark.parametrize("case", LEFT)
def test_a_norm_that_is_not_alike_is_left_and_the_report_says_why(case, norms) -> None:
    norm, why = LEFT[case]
    assert reason(norms, norm()) == why


def test_a_norm_that_is_left_is_as_it_was(norms) -> None:
    norm = ToyNorm(H, eps=1e-5)
    before = dict(vars(norm))
    reason(norms, norm)
    assert vars(norm) == before


def test_an_eps_that_is_an_argument_is_passed_on() -> None:
    fields = {**LLAMA, "eps": "argument", "hidden_size": H}
    norms = generated(make(**fields, replaces=(path(ToyNorm),)), name="eps")
    model = torch.nn.Sequential(ToyNorm(H, eps=0.5), ToyNorm(H, eps=1e-3))
    x = torch.randn(2, H)
    expected = model(x)
    assert len(norms.patch(model).replaced) == 2
    assert torch.equal(model(x), expected)
    assert repr(model[0]) == "RMSNorm(8, eps=0.5)"
    assert reason(norms, ToyNorm(H, eps=None)) == (
        "rms_norm: eps: expected a number, got NoneType"
    )
    assert reason(norms, ToyNorm(H, eps=0.0)).startswith("rms_norm: eps: expected a nu")
    for norm, values in (
        (_without_eps(ToyNorm(H)), []),
        (_with_two_eps(ToyNorm(H)), [1e-6, 1e-5]),
    ):
        assert reason(norms, norm) == (
            f"rms_norm: eps: expected one attribute that tells it, got {values}"
        )


def test_a_norm_with_its_eps_in_its_code_is_replaced(norms) -> None:
    norm = _without_eps(ToyNorm(H))
    norm.steps = 7
    assert norms.patch(torch.nn.Sequential(norm)).replaced


def test_an_eps_goes_by_several_names(norms) -> None:
    norm = _without_eps(ToyNorm(H))
    norm.layer_norm_eps = 1e-5
    assert reason(norms, norm) == "rms_norm: eps: expected 1e-06, got 1e-05"


@pytest.mark.parametrize(
    ("hidden_size", "settings", "why"),
    [
        (H, {}, None),
        (H, {"hidden_size": H}, None),
        (H, {"dim": 5}, "hidden_size: expected 8, got 5"),
        ("dynamic", {"normalized_shape": (5,)}, None),
        ("dynamic", {"normalized_shape": (5, 5)}, "hidden_size: expected an int, got "),
        ("dynamic", {}, "hidden_size: expected an attribute that tells it, got none"),
        ((H, 5), {}, "hidden_size: expected an attribute that tells it, got none"),
    ],
)
def test_a_norm_without_a_weight_tells_its_width(hidden_size, settings, why) -> None:
    fields = {"weight": "none", "eps": 1e-6, "hidden_size": hidden_size}
    norms = generated(make(**fields, replaces=(path(UnitNorm),)), name="unit")
    norm = UnitNorm(**settings)
    if why is not None:
        assert reason(norms, norm).startswith(f"rms_norm: {why}")
        return
    model = torch.nn.Sequential(norm)
    x = torch.randn(3, settings.get("normalized_shape", (H,))[0])
    expected = model(x)
    assert len(norms.patch(model).replaced) == 1
    assert torch.equal(model(x), expected)


def test_a_norm_with_a_weight_is_none_without() -> None:
    fields = {"weight": "none", "eps": 1e-6, "hidden_size": H}
    norms = generated(make(**fields, replaces=(path(ToyNorm),)), name="weightless")
    assert reason(norms, ToyNorm(H)) == (
        "rms_norm: parameters: expected none, got weight"
    )


def gated(group_size: int | None) -> ModuleType:
    made = make(
        **LLAMA,
        hidden_size=H,
        group_size=group_size,
        replaces=(path(GatedNorm),),
        **{"gate.position": "before"},
    )
    return generated(made, name="gated")


def test_a_gate_is_passed_by_position_or_by_name() -> None:
    norms = gated(4)
    model = torch.nn.ModuleList([GatedNorm(H, group_size=4, norm_before_gate=False)])
    x, gate = torch.randn(2, 3, H), torch.randn(2, 3, H)
    expected = model[0](x, gate)
    assert len(norms.patch(model).replaced) == 1
    assert torch.equal(model[0](x, gate), expected)
    assert torch.equal(model[0](x, gate=gate), expected)


@pytest.mark.parametrize(
    ("group_size", "settings", "why"),
    [
        (4, {"group_size": 2}, "group_size: expected 4, got 2"),
        (None, {"group_size": 2}, "group_size: expected 8, got 2"),
        (4, {"n_groups": 4}, "group_size: expected 4, got 2"),
        (4, {}, "group_size: expected 4, got 8"),
        (None, {"n_groups": 4}, "group_size: expected 8, got 2"),
        (
            None,
            {"norm_before_gate": True},
            "norm_before_gate: expected False, got True",
        ),
        (None, {"activation": "sigmoid"}, "activation: expected silu, got sigmoid"),
    ],
)
def test_other_settings_of_a_norm_must_agree(group_size, settings, why) -> None:
    norms = gated(group_size)
    assert reason(norms, GatedNorm(H, **settings)) == f"rms_norm: {why}"


def test_a_layer_norm_over_channels_is_none_over_the_last_axis() -> None:
    fields = {"variant": "layer_norm", "bias": True, "hidden_size": H}
    first = make(**fields, name="channel_norm", axis="channel", replaces=(LAYER_NORM,))
    norms = generated(first, make(**fields, replaces=(LAYER_NORM,)), name="channels")
    model = torch.nn.Sequential(*(torch.nn.LayerNorm(H) for _ in range(3)))
    model[0].data_format = "channels_last"
    model[1].data_format = "channels_first"
    assert [entry for _, entry in norms.patch(model).replaced] == [
        "layer_norm",
        "channel_norm",
        "channel_norm",
    ]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({}, None),
        ({"bias": False}, "bias: expected a parameter"),
        ({"elementwise_affine": False}, "weight: expected a parameter"),
    ],
)
def test_a_bias_of_none_is_no_bias(made, why) -> None:
    fields = {"variant": "layer_norm", "replaces": (LAYER_NORM,), "hidden_size": H}
    both = make(**fields, name="with_bias", bias=True)
    scale = make(**fields, name="without_bias")
    bare = make(**fields, name="bare", weight="none")
    norms = generated(both, scale, bare, name="layer_norms")
    model = torch.nn.Sequential(torch.nn.LayerNorm(H, **made))
    x = torch.randn(3, H)
    expected = model(x)
    ((_, entry),) = norms.patch(model).replaced
    names = {"bias": "without_bias", "elementwise_affine": "bare"}
    assert entry == next((names[name] for name in made), "with_bias")
    torch.testing.assert_close(model(x), expected)
    bias = model[0].bias
    assert (bias is None) == bool(made)
    assert model[0].normalized_shape == (H,)


def test_each_head_has_weights_of_its_own() -> None:
    fields = {"weight": "per_head", "hidden_size": H, **LLAMA}
    norms = generated(make(**fields, replaces=(path(HeadsNorm),)), name="heads")
    model = torch.nn.Sequential(HeadsNorm(3, H))
    x = torch.randn(2, 3, H)
    expected = model(x)
    assert len(norms.patch(model).replaced) == 1
    assert torch.equal(model(x), expected)


def test_a_weight_of_each_group_says_nothing_about_the_row() -> None:
    fields = {**LLAMA, "weight": "per_group", "group_size": 4}
    made = make(**fields, hidden_size=H, replaces=(path(ToyNorm),))
    norms = generated(made, name="groups")
    model = torch.nn.Sequential(ToyNorm(4))
    assert len(norms.patch(model).replaced) == 1
    assert reason(norms, ToyNorm(H)) == (
        "rms_norm: weight: expected shape [4], got [8]"
    )


@pytest.mark.parametrize(
    ("parameters", "weight", "fits"),
    [
        ("float32", torch.float32, True),
        ("float32", torch.bfloat16, False),
        ("same", torch.bfloat16, True),
        ("same", torch.float16, False),
    ],
)
def test_parameters_have_a_dtype_that_the_spec_allows(parameters, weight, fits) -> None:
    fields = {**LLAMA, "hidden_size": H, "dtype": ("bfloat16",)}
    made = make(**fields, parameters=parameters, replaces=(path(ToyNorm),))
    norms = generated(made, name="dtypes")
    report = norms.patch(torch.nn.Sequential(ToyNorm(H).to(weight)))
    assert bool(report.replaced) == fits
    assert fits or "expected torch." in report.left[0][1]
