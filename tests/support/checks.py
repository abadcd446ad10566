"""Runs a generated function and holds all that it returns against the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import torch

from normgen.spec import Norm
from support.build import build
from support.gradients import gradients
from support.inputs import Inputs, case, gradient_like
from support.oracle import Oracle


@dataclass
class Run:
    """One call and its backward."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)


def output_names(norm: Norm) -> list[str]:
    modulation = norm.modulation
    twice = norm.second_affine or (modulation is not None and modulation.second)
    names = ["y", "y2"] if twice else ["y"]
    if norm.residual == "pre_add":
        names.append("residual_sum")
    if norm.save_stats == "always":
        names += ["mean", "rstd"] if norm.variant == "layer_norm" else ["rstd"]
    return names


def call(module: ModuleType, norm: Norm, inputs: Inputs, suffix: str = "") -> dict:
    """The named outputs of the public function (or of its ``_reference``)."""
    result = getattr(module, norm.name + suffix)(*inputs.arguments())
    names = output_names(norm)
    if len(names) == 1:
        assert isinstance(result, torch.Tensor)
        return {"y": result}
    assert isinstance(result, tuple)
    return dict(zip(names, result, strict=True))


def leaves(inputs: Inputs, requires_grad: tuple[str, ...] | None = None) -> Inputs:
    """Detached operands, the named ones (all, by default) requiring a gradient."""
    return inputs.with_tensors(
        **{
            name: t.detach().requires_grad_(
                requires_grad is None or name in requires_grad
            )
            for name, t in inputs.tensors().items()
        }
    )


def run(
    module: ModuleType,
    norm: Norm,
    inputs: Inputs,
    upstream: dict[str, torch.Tensor] | None = None,
    *,
    requires_grad: tuple[str, ...] | None = None,
    suffix: str = "",
) -> Run:
    """Forward, and backward from ``upstream`` (name of an output -> its gradient)."""
    if upstream is None:
        return Run(call(module, norm, inputs, suffix))
    inputs = leaves(inputs, requires_grad)
    outputs = call(module, norm, inputs, suffix)
    torch.autograd.backward(
        [outputs[name] for name in upstream], list(upstream.values())
    )
    found = {name: t.grad for name, t in inputs.tensors().items()}
    return Run({n: t.detach() for n, t in outputs.items()}, found)


def upstream_for(norm: Norm, oracle: Oracle) -> dict[str, torch.Tensor]:
    """Independent gradients for the differentiable outputs."""
    found = {}
    axis = 1 if norm.axis == "channel" else -1
    for name in oracle.results:
        seed = {"y": 11, "residual_sum": 12, "y2": 13}[name]
        shape = oracle.inputs.x.shape
        if norm.output == "factor":
            shape = oracle.places.factor_shape
        dtype = oracle.output_dtype(name)
        like = torch.empty(shape, dtype=dtype, device=oracle.inputs.x.device)
        found[name] = gradient_like(like, seed=seed, axis=axis)
    return found


def check(module: ModuleType, norm: Norm, inputs: Inputs, what: str = "") -> Run:
    """Forward, and backward where there is one, within the oracle's bounds.

    No operand and no upstream gradient may be written, except where the spec says so.
    """
    oracle = Oracle(norm, inputs)
    upstream = upstream_for(norm, oracle) if norm.backward else None
    kept = {n: t.clone() for n, t in inputs.tensors().items()}
    kept_upstream = {n: t.clone() for n, t in (upstream or {}).items()}
    done = run(module, norm, inputs, upstream)
    for name, expected in oracle.outputs().items():
        expected.check(done.outputs[name], f"{what} {name}")
    if upstream is not None:
        wanted = gradients(oracle, upstream)
        for name, expected in wanted.items():
            assert done.gradients[name] is not None, f"{what} no gradient of {name}"
            expected.check(done.gradients[name], f"{what} d_{name}")
        for name, before in kept_upstream.items():
            assert torch.equal(upstream[name], before), f"gradient of {name} written"
    for name, before in kept.items():
        if name == "residual" and norm.residual_in_place:
            written = done.outputs[
                "residual_sum" if norm.residual == "pre_add" else "y"
            ]
            assert torch.equal(inputs.residual, written), "residual is not the sum"
        else:
            now = inputs.tensors()[name]
            assert torch.equal(now, before), f"{name} was written"
    return done


def check_spec(
    norm: Norm, shape: tuple[int, ...], io: torch.dtype, device: str, **options
) -> Run:
    """Builds, makes a case and checks it."""
    inputs = case(norm, shape, io, device=device, **options)
    return check(build(norm), norm, inputs, what=f"{norm.name} {shape} {io}")
