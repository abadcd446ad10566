"""Where the numbers of a norm stand: every tensor as [samples, rows, groups, length].

``length`` columns are normalized together; a head is a group.  What a tensor does not
depend on has the size 1, so that tensors broadcast against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from normgen.spec import Norm


def operand_spaces(norm: Norm) -> dict[str, str]:
    """The tensors beside x in the order of the call, and what each depends on."""
    found: dict[str, str] = {}
    affine, gate, modulation = norm.affine, norm.gate, norm.modulation
    own = {"per_head": "head", "per_group": "group"}.get(affine.weight, "column")
    for suffix in ("", "2") if norm.second_affine else ("",):
        if norm.has_weight:
            found[f"weight{suffix}"] = own
        if affine.bias:
            found[f"bias{suffix}"] = own
    if norm.residual != "none":
        found["residual"] = "element"
    if gate is not None:
        found["gate"] = "element"
    if modulation is not None:
        per = "sample" if modulation.per == "sample" else "element"
        for suffix in ("", "2") if modulation.second else ("",):
            if modulation.operands != "shift":
                found[f"scale{suffix}"] = per
            if modulation.operands != "scale":
                found[f"shift{suffix}"] = per
    if norm.branch_scale is not None and norm.branch_scale.per is not None:
        named = {"channel": "column", "sample": "sample", "row": "element"}
        found["branch_scale"] = named[norm.branch_scale.per]
    return found


def has_samples(norm: Norm) -> bool:
    """Whether the first dimension of x counts samples."""
    return "sample" in operand_spaces(norm).values() or norm.axis == "channel"


def operand_shapes(norm: Norm, shape: torch.Size) -> dict[str, torch.Size]:
    """The shape of each tensor beside x [shape]."""
    length = shape[1] if norm.axis == "channel" else shape[-1]
    shapes = {
        "element": shape,
        "column": torch.Size([length]),
        "head": shape[-2:],
        "group": torch.Size([norm.group_size or length]),
        "sample": torch.Size([shape[0], length]),
    }
    return {name: shapes[space] for name, space in operand_spaces(norm).items()}


def shape_for(norm: Norm, rows: int, length: int) -> tuple[int, ...]:
    """A shape of x with about so many rows of ``length`` columns a group of programs.

    Three samples, or three heads, where the spec has such; a group is part of a row.
    """
    if norm.axis == "channel":
        return (3, length, rows)
    heads = (3,) if norm.affine.weight == "per_head" else ()
    samples = (3,) if has_samples(norm) else ()
    return (*samples, rows, *heads, length)


@dataclass(frozen=True)
class Places:
    """The places of a norm's tensors, beside an x of this shape."""

    norm: Norm
    shape: torch.Size

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Samples, rows of a sample, groups, and their length."""
        shape, norm = self.shape, self.norm
        if norm.axis == "channel":
            return shape[0], shape[2:].numel(), 1, shape[1]
        groups, length = 1, shape[-1]
        leading = shape[:-1]
        if norm.affine.weight == "per_head":
            groups, leading = shape[-2], shape[:-2]
        elif norm.group_size is not None:
            groups, length = shape[-1] // norm.group_size, norm.group_size
        if not has_samples(norm):
            return 1, leading.numel(), groups, length
        return leading[0], leading[1:].numel(), groups, length

    def spread(self, tensor: torch.Tensor, space: str) -> torch.Tensor:
        """A tensor in its places, by what it depends on."""
        samples, rows, groups, length = self.sizes
        heads = self.norm.affine.weight == "per_head"
        if space == "element":
            if self.norm.axis == "channel":
                tensor = tensor.movedim(1, -1)
            return tensor.reshape(samples, rows, groups, length)
        if space == "group":
            return tensor.reshape(1, 1, 1, length)
        if space == "head" or not heads:
            first = samples if space == "sample" else 1
            return tensor.reshape(first, 1, groups, length)
        return tensor.reshape(samples if space == "sample" else 1, 1, 1, length)

    def gathered(self, value: torch.Tensor) -> torch.Tensor:
        """An element of every place, as a tensor of the shape of x."""
        value = value.expand(self.sizes)
        if self.norm.axis == "channel":
            samples, channels, *space = self.shape
            return value.reshape(samples, *space, channels).movedim(-1, 1)
        return value.reshape(self.shape)

    @property
    def statistic_shape(self) -> torch.Size:
        """The shape of a statistic."""
        if self.norm.axis == "channel":
            return torch.Size([self.shape[0], *self.shape[2:]])
        if self.norm.group_size is not None:
            return torch.Size([*self.shape[:-1], self.sizes[2]])
        return self.shape[:-1]

    @property
    def factor_shape(self) -> torch.Size:
        """The shape of a factor that is returned instead of rows."""
        if self.norm.axis == "channel":
            return torch.Size([self.shape[0], 1, *self.shape[2:]])
        return torch.Size([*self.shape[:-1], 1])
