"""The operands of a case, made so that a mistake shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch

from normgen.spec import Norm
from support.allocations import between_nans
from support.places import operand_shapes

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LOW_AND_HIGH = (torch.float32, torch.bfloat16, torch.float16)
PARAMETERS = ("weight", "bias", "weight2", "bias2")


@dataclass(frozen=True)
class Inputs:
    """What one call takes, in its order; what the spec does not have is None."""

    x: torch.Tensor
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    weight2: torch.Tensor | None = None
    bias2: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    scale2: torch.Tensor | None = None
    shift2: torch.Tensor | None = None
    branch_scale: torch.Tensor | None = None
    eps: float | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor operands by name, in the order of the call."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {n: t for n, t in named.items() if n != "eps" and t is not None}

    def arguments(self) -> Iterator[object]:
        yield from self.tensors().values()
        if self.eps is not None:
            yield self.eps

    def with_tensors(self, **tensors: torch.Tensor) -> Inputs:
        return replace(self, **tensors)

    def map(self, change) -> Inputs:
        return replace(self, **{n: change(t) for n, t in self.tensors().items()})


def residual_dtype(norm: Norm, io: torch.dtype) -> torch.dtype:
    return io if norm.residual_dtype == "same" else torch.float32


def parameter_dtype(
    norm: Norm, io: torch.dtype, free: torch.dtype | None = None
) -> torch.dtype:
    """What affine.dtype asks for; ``free`` is the choice where it asks for nothing."""
    if norm.affine.dtype in DTYPES:
        return DTYPES[norm.affine.dtype]
    return io if norm.affine.dtype == "same" or free is None else free


def case(
    norm: Norm,
    shape: tuple[int, ...],
    io: torch.dtype,
    *,
    parameters: torch.dtype | None = None,
    others: torch.dtype | None = None,
    device: str = "cpu",
    seed: int = 0,
    eps: float = 1e-5,
) -> Inputs:
    """Operands for ``norm``: rows of very different scale, x of nonzero mean, weights
    away from 1 and of both signs, a residual larger than x, and NaN around each.

    ``parameters`` is the dtype of weights and biases where the spec leaves it free,
    ``others`` that of a gate, scale, shift and branch_scale.
    """
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    row_axis = 1 if norm.axis == "channel" else -1
    # a sum of squares in float16 ends at 65504
    small = io == torch.float16 and norm.statistics.precision != "float32"
    largest = 0.3 if small else 1.5
    scale = _scales(shape, row_axis, torch.logspace(-2, largest, 997), generator)

    def place(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return between_nans(value.to(dtype).to(device))

    made = {"x": place((randn(*shape) + 0.5) * scale, io)}
    shapes = operand_shapes(norm, torch.Size(shape))
    dtype, other = parameter_dtype(norm, io, parameters), others or io
    for name, size in shapes.items():
        if name in ("weight", "weight2"):
            sign = torch.where(randn(*size) < 0, -1.0, 1.0)
            values = sign * (0.4 + 1.5 * torch.rand(*size, generator=generator))
        elif name == "branch_scale":
            sign = torch.where(randn(*size) < 0, -1.0, 1.0)
            values = sign * (0.2 + 1.2 * torch.rand(*size, generator=generator))
        elif name == "residual":
            values = (randn(*size) - 0.25) * scale * 4
        else:
            values = randn(*size) * 1.5 + 0.25
        own = {"residual": residual_dtype(norm, io), **dict.fromkeys(PARAMETERS, dtype)}
        made[name] = place(values, own.get(name, other))
    return Inputs(**made, eps=eps if norm.eps == "argument" else None)


def _scales(
    shape: tuple[int, ...],
    axis: int,
    values: torch.Tensor,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """One number a row, of a range: in random order where there is a generator."""
    sizes = list(shape)
    sizes[axis] = 1
    n_rows = torch.Size(sizes).numel()
    spread = torch.linspace(0, len(values) - 1, max(n_rows, 1))[:n_rows].long()
    chosen = values[spread]
    if generator is not None:
        chosen = chosen[torch.randperm(n_rows, generator=generator)]
    return chosen.view(sizes)


def gradient_like(tensor: torch.Tensor, seed: int = 1, axis: int = -1) -> torch.Tensor:
    """A gradient for ``tensor``: rows of different scale, no mean of zero."""
    generator = torch.Generator().manual_seed(seed)
    scale = _scales(tuple(tensor.shape), axis, torch.logspace(-1, 0.5, 997), None)
    values = (torch.randn(tensor.shape, generator=generator) + 0.2) * scale
    return between_nans(values.to(tensor.dtype).to(tensor.device))
