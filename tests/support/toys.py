"""Norms as models write them, and modules that stand for them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from support.build import load, make, text_of

H = 8


class ToyNorm(torch.nn.Module):
    """An RMS norm as models write it."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(hidden_size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.float()
        rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (x * rstd).to(hidden_states.dtype)


class DerivedNorm(ToyNorm):
    """Not the class that a spec names."""


class UnitNorm(torch.nn.Module):
    """A norm without a weight, and without a word on its width."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.eps = 1e-6
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class GatedNorm(ToyNorm):
    """A norm whose gate comes before it, with groups."""

    def __init__(self, hidden_size: int, **settings: Any) -> None:
        super().__init__(hidden_size)
        vars(self).update(settings)

    def forward(
        self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = hidden_states.float() * torch.nn.functional.silu(gate.float())
        groups = x.unflatten(-1, (-1, self.group_size))
        rstd = torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (groups * rstd).flatten(-2).to(hidden_states.dtype)


class HeadsNorm(ToyNorm):
    """A row of weights for each head."""

    def __init__(self, heads: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.weight = torch.nn.Parameter(torch.rand(heads, hidden_size))


class Block(torch.nn.Module):
    """A layer, with its norm."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.linear = torch.nn.Linear(H, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x))


def path(norm: type) -> str:
    return f"{norm.__module__}.{norm.__qualname__}"


LAYER_NORM = "torch.nn.modules.normalization.LayerNorm"
LLAMA = {"eps": 1e-6, "normalized": "io", "out_dtype": "promote"}
RMS = make(**LLAMA, hidden_size=H, replaces=(path(ToyNorm),))


def generated(*norms: Any, name: str = "patching") -> ModuleType:
    """A module that runs its reference on the CPU, interpreter or not."""
    module = load(text_of(*norms), f"generated_for_{name}")
    module._INTERPRETED = False
    return module
