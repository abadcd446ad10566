"""Runs a case: the class with drawn weights, and the generated module with the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from support.build import build, layer_class

from conformance.adapters import Call, Draw, Stub
from conformance.case import Case, Config
from conformance.libraries import find
from normgen.loader import load
from normgen.spec import Norm

ROOT = Path(__file__).parents[2]


@functools.cache
def _entries(stem: str) -> dict[str, Norm]:
    path = ROOT / "specs" / f"{stem}.yaml"
    return {norm.name: norm for norm in load(path).kernels}


def norm_of(case: Case) -> Norm:
    """The entry of the spec that the case names, or the one it writes out."""
    if isinstance(case.spec, str):
        stem, name = case.spec.split(":")
        norm = _entries(stem)[name]
        assert case.size in norm.lengths or not norm.lengths, f"{case.size} not listed"
        return norm
    fields = {"name": case.spec["variant"], "hidden_size": case.size, **case.spec}
    return Norm.model_validate(fields)


def made(value: Any) -> Any:
    """An argument of a class; configurations are made here."""
    if not isinstance(value, Config):
        return value
    return find(value.source)(**value.values)


def theirs_of(case: Case, parameters: torch.dtype) -> Any:
    """The instance of the class with drawn weights, or the function itself."""
    source = find(case.source)
    if not inspect.isclass(source):
        return source
    with torch.device("meta"):
        layer = source(
            *(made(a) for a in case.args),
            **{k: made(v) for k, v in case.kwargs.items()},
        )
    for name in case.stubs:
        layer.set_submodule(name, Stub())
    layer = layer.to_empty(device="cpu").to(parameters).eval()
    _fill(layer)
    return layer


@torch.no_grad()
def _fill(layer: torch.nn.Module) -> None:
    """Weights away from 1 and of both signs, biases of either sign."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in layer.named_parameters():
        if name.endswith(("bias", "shift")):
            values = torch.randn(parameter.shape, generator=generator) * 1.5 + 0.25
        else:
            values = torch.rand(parameter.shape, generator=generator) * 1.5 + 0.4
            values[torch.rand(parameter.shape, generator=generator) < 0.5] *= -1
        parameter.copy_(values)


def rows(case: Case, dtype: torch.dtype, *, strided: bool = False) -> torch.Tensor:
    """x with rows of different scale and a mean that is not 0."""
    generator = torch.Generator().manual_seed(11)
    pad = 24 if strided else 0
    *outer, last = (*case.lead, case.size, *case.after)
    values = torch.randn(*outer, last + pad, generator=generator)[..., :last] + 0.4
    axis = len(case.lead)
    count = values.numel() // case.size
    scale = torch.logspace(-3, 1, count)[torch.randperm(count, generator=generator)]
    shape = [n for i, n in enumerate(values.shape) if i != axis]
    values *= case.magnitude * scale.view(shape).unsqueeze(axis)
    stored = torch.zeros(*outer, last + pad, dtype=dtype)
    x = stored[..., :last]
    return x.copy_(values)


@dataclass
class Run:
    """Both sides of one call, and what a bound reads."""

    norm: Norm
    module: ModuleType
    ours: torch.nn.Module
    x: torch.Tensor
    call: Call
    eps: float | None

    @property
    def expected(self) -> tuple[torch.Tensor, ...]:
        found = self.call.expected
        return found if isinstance(found, tuple) else (found,)

    def arguments(self, function: Any) -> dict[str, Any]:
        """What a generated function takes, by name."""
        known = {
            "x": self.x,
            **self.call.operands,
            **dict(self.ours.named_parameters()),
            "eps": self.eps,
        }
        return {name: known[name] for name in inspect.signature(function).parameters}

    def _outputs(self, name: str) -> tuple[torch.Tensor, ...]:
        function = getattr(self.module, name)
        found = function(**self.arguments(function))
        return found if isinstance(found, tuple) else (found,)

    def reference(self) -> tuple[torch.Tensor, ...]:
        return self._outputs(f"{self.norm.name}_reference")

    def kernel(self) -> tuple[torch.Tensor, ...]:
        return self._outputs(self.norm.name)

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.ours.named_parameters()}


def run(
    case: Case,
    pair: tuple[str, str],
    *,
    strided: bool = False,
    norm: Norm | None = None,
) -> Run:
    """The class has run, and the generated module holds its weights."""
    io, parameters = (getattr(torch, name) for name in pair)
    norm = norm or norm_of(case)
    module = build(norm)
    theirs = theirs_of(case, parameters)
    ours = ours_of(case, norm, module, theirs, parameters)
    x = rows(case, io, strided=strided)
    with torch.no_grad():
        call = case.call(theirs, x, Draw(3, x, parameters))
    return Run(norm, module, ours, x if call.x is None else call.x, call, case.eps)


def ours_of(
    case: Case, norm: Norm, module: ModuleType, theirs: Any, dtype: torch.dtype
) -> torch.nn.Module:
    """The generated module with their weights, loaded strictly."""
    options = {} if case.heads is None else {"heads": case.heads}
    if norm.eps == "argument":
        options["eps"] = case.eps
    ours = layer_class(module, norm)(hidden_size=case.size, **options)
    if isinstance(theirs, torch.nn.Module):
        state = state_of(case, theirs)
        shapes = {name: value.shape for name, value in ours.state_dict().items()}
        reshaped = {
            name: value.reshape(shapes.get(name, value.shape))
            for name, value in state.items()
        }
        ours.load_state_dict(reshaped, strict=True)
    return ours.to(dtype)


def state_of(case: Case, theirs: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Their state dict under our names."""
    if callable(case.state):
        return case.state(theirs)
    state = theirs.state_dict()
    if isinstance(case.state, str):
        prefix = f"{case.state}." if case.state else ""
        return {
            name.removeprefix(prefix): value
            for name, value in state.items()
            if name.startswith(prefix)
        }
    return {ours: state[name] for name, ours in case.state.items()}
