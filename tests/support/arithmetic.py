"""Two ways of evaluating a contract: exactly, and in bounds, both with gradients.

:class:`Exact` is float64 torch, rounded where the contract rounds; a rounding passes
its gradient through, and autograd does the rest.  :class:`Bounded` computes intervals
that hold every float32 evaluation, and remembers how; walking back over what it
remembers gives intervals that hold every float32 gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from support import normalization
from support.activations import ACTIVATIONS, EAGER
from support.intervals import Interval, to_dtype
from support.normalization import Facts

F32 = torch.float32


class _StraightThrough(torch.autograd.Function):
    """A rounding: another value, the same gradient."""

    @staticmethod
    def forward(ctx: Any, exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Exact:
    """float64 tensors with autograd; rounded only where the contract rounds."""

    def round(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if dtype == F32:
            return value
        return _StraightThrough.apply(value, to_dtype(value.detach(), dtype))

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    def times(self, a: torch.Tensor, number: float) -> torch.Tensor:
        return a * number

    def plus(self, a: torch.Tensor, number: float) -> torch.Tensor:
        return _StraightThrough.apply(a + number, to_dtype((a + number).detach(), F32))

    def activate(self, name: str, z: torch.Tensor) -> torch.Tensor:
        return EAGER[name](z)

    def normalize(self, facts: Facts, x: torch.Tensor) -> dict[str, torch.Tensor]:
        low = facts.precision != "float32"

        def to_io(value: torch.Tensor) -> torch.Tensor:
            return self.round(value, facts.io) if low else value

        def to_rstd(value: torch.Tensor) -> torch.Tensor:
            rounds = facts.norm.rounding.rstd == "io"
            return self.round(value, facts.io) if rounds else value

        return normalization.exact(facts, x, to_io, to_rstd)

    def gain(
        self, made: dict[str, Any], weight: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """x * (rstd * weight), the product in brackets rounded to ``dtype``."""
        return made["numerator"] * self.round(made["factor"] * weight, dtype)


@dataclass(eq=False)
class Node:
    """An interval, and how the gradient of what it is made of follows from its own."""

    value: Interval
    pulls: tuple[tuple[Node, Callable[[Interval], Interval]], ...] = ()
    is_exact: bool = False
    arriving: list[Interval] = field(default_factory=list)


class Bounded:
    """Intervals that hold every float32 evaluation, remembered in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _made(self, value: Interval, *pulls: Any, is_exact: bool = False) -> Node:
        self.nodes.append(Node(value, pulls, is_exact))
        return self.nodes[-1]

    def enter(self, tensor: torch.Tensor) -> Node:
        return self._made(Interval.around(tensor.detach()), is_exact=True)

    def round(self, a: Node, dtype: torch.dtype) -> Node:
        return self._made(a.value.round(dtype), (a, lambda dy: dy))

    def add(self, a: Node, b: Node) -> Node:
        made = a.value + b.value
        # one exact addition: its float32 result is fixed
        fixed = a.is_exact and b.is_exact
        made = made.round(F32) if fixed else made.computed()
        return self._made(made, (a, lambda dy: dy), (b, lambda dy: dy))

    def multiply(self, a: Node, b: Node) -> Node:
        return self._made(
            (a.value * b.value).computed(),
            (a, lambda dy: (dy * b.value).computed()),
            (b, lambda dy: (dy * a.value).computed()),
        )

    def times(self, a: Node, number: float) -> Node:
        held = Interval.around(torch.full_like(a.value.low, number))
        return self._made(
            (a.value * held).computed(), (a, lambda dy: (dy * held).computed())
        )

    def plus(self, a: Node, number: float) -> Node:
        made = a.value.rising(lambda v: v + number)
        made = made.round(F32) if a.is_exact else made.computed()
        return self._made(made, (a, lambda dy: dy))

    def activate(self, name: str, a: Node) -> Node:
        slope = ACTIVATIONS[name].slopes(a.value)
        return self._made(
            ACTIVATIONS[name].values(a.value).computed(),
            (a, lambda dy: (dy * slope).widened(2.0).computed()),
        )

    def normalize(self, facts: Facts, x: Node) -> dict[str, Any]:
        found = normalization.bounded(facts, x.value)
        x_hat = self._made(
            found.x_hat, (x, lambda dy: normalization.adjoint(facts, found, dy))
        )
        factor = self._made(
            found.factor,
            (x, lambda dy: normalization.factor_adjoint(facts, found, dy)),
        )
        mean = self._made(found.mean)
        return {"x_hat": x_hat, "mean": mean, "factor": factor, "bounds": found}

    def gain(self, made: dict[str, Any], weight: Node, dtype: torch.dtype) -> Node:
        """x * (rstd * weight), the product in brackets rounded to ``dtype``.

        Its gradients are those of x_hat * weight.
        """
        found, x_hat = made["bounds"], made["x_hat"]
        gain = (found.factor * weight.value).computed().round(dtype)
        return self._made(
            (found.numerator * gain).computed(),
            (x_hat, lambda dy: (dy * weight.value).computed()),
            (weight, lambda dy: (dy * found.normal).computed()),
        )

    def pull(self, given: dict[Node, torch.Tensor]) -> None:
        """Sends gradients back from the nodes ``given`` to all that they are made of.

        A gradient keeps the shape that it has got: it is summed at its end.
        """
        for node in self.nodes:
            node.arriving.clear()
        for node, gradient in given.items():
            node.arriving.append(Interval.around(gradient))
        for node in reversed(self.nodes):
            gradient = gathered(node)
            if gradient is not None:
                for source, back in node.pulls:
                    source.arriving.append(back(gradient))


def gathered(node: Node) -> Interval | None:
    """The gradient of a node: the sum of all that arrived."""
    if not node.arriving:
        return None
    total, *rest = node.arriving
    for other in rest:
        total = (total + other).computed()
    return total
