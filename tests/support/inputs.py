"""The operands of a case, made so that a mistake shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from normgen.spec import Norm
from support.allocations import between_nans

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LOW_AND_HIGH = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Inputs:
    """What one call takes; an operand that the spec does not have is None."""

    x: torch.Tensor
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    eps: float | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor operands by name, in the order of the call."""
        named = {
            name: getattr(self, name) for name in ("x", "weight", "bias", "residual")
        }
        return {name: t for name, t in named.items() if t is not None}

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
    device: str = "cpu",
    seed: int = 0,
    eps: float = 1e-5,
) -> Inputs:
    """Operands for ``norm``: rows of very different scale, x of nonzero mean, weights
    away from 1 and of both signs, a residual larger than x, and NaN around each."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    *leading, length = shape
    n_rows = torch.Size(leading).numel()
    scale = torch.logspace(-2, 1.5, max(n_rows, 1))[:n_rows]
    scale = scale[torch.randperm(n_rows, generator=generator)].view(*leading, 1)

    def place(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return between_nans(value.to(dtype).to(device))

    x = place((randn(*shape) + 0.5) * scale, io)
    dtype = parameter_dtype(norm, io, parameters)
    weight = bias = residual = None
    if norm.has_weight:
        sign = torch.where(randn(length) < 0, -1.0, 1.0)
        weight = place(
            sign * (0.4 + 1.5 * torch.rand(length, generator=generator)), dtype
        )
    if norm.affine.bias:
        bias = place(randn(length) * 1.5 + 0.25, dtype)
    if norm.residual != "none":
        residual = place((randn(*shape) - 0.25) * scale * 4, residual_dtype(norm, io))
    return Inputs(x, weight, bias, residual, eps if norm.eps == "argument" else None)


def gradient_like(tensor: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """A gradient for ``tensor``: rows of different scale, no mean of zero."""
    generator = torch.Generator().manual_seed(seed)
    *leading, _ = tensor.shape
    n_rows = torch.Size(leading).numel()
    scale = torch.logspace(-1, 0.5, max(n_rows, 1))[:n_rows].view(*leading, 1)
    values = (torch.randn(tensor.shape, generator=generator) + 0.2) * scale
    return between_nans(values.to(tensor.dtype).to(tensor.device))
