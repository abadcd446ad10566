"""How a class is called, and what the generated function takes instead.

An adapter gets the class's instance (or a function), x, and a source of further random
operands.  It runs the real code and returns a :class:`Call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = torch.Tensor | tuple[torch.Tensor, ...]


class Draw:
    """Random operands, in the dtype of x or of the parameters."""

    def __init__(self, seed: int, x: torch.Tensor, parameters: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.x, self.parameters = x, parameters

    def like_x(self) -> torch.Tensor:
        values = torch.randn(self.x.shape, generator=self.generator)
        return (1.5 * values + 0.25).to(self.x.dtype)

    def conditioning(self, *shape: int) -> torch.Tensor:
        """In the dtype of the parameters, as what a linear layer returns."""
        values = torch.randn(*shape, generator=self.generator)
        return values.to(self.parameters)


@dataclass
class Call:
    """What the class returned, and the same call of the generated function.

    ``x`` is given where the generated function takes other rows than the class was
    called with.
    """

    expected: Tensors
    operands: dict[str, torch.Tensor] = field(default_factory=dict)
    x: torch.Tensor | None = None


class Stub(torch.nn.Module):
    """Stands for a submodule whose work does not matter: it returns what it is told."""

    returns: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.returns


@dataclass
class Watch:
    """The first input and the output of a submodule, once it has run."""

    module: torch.nn.Module
    seen: torch.Tensor | None = None
    made: Any = None

    def __post_init__(self) -> None:
        self.module.register_forward_hook(self._hook, with_kwargs=True)

    def _hook(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self.seen = args[0] if args else next(iter(kwargs.values()))
        self.made = output


def plain(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    return Call(theirs(x))


def applied(**options: Any) -> Callable[..., Call]:
    """A function, with further keyword arguments."""
    return lambda theirs, x, draw: Call(theirs(x, **options))


def divided_by(**options: Any) -> Callable[..., Call]:
    """A function that returns the norm; its callers divide by it."""
    return lambda theirs, x, draw: Call(x / theirs(x, **options))


def method(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """A method that does not use its self."""
    return Call(theirs(None, x))


def gated(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    gate = draw.like_x()
    return Call(theirs(x, gate), {"gate": gate})


def heads_first(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
    """A class that takes [batch, heads, rows, columns]."""
    return Call(theirs(x.transpose(1, 2)).transpose(1, 2))


def heads_apart(heads: int) -> Callable[..., Call]:
    """A class that takes [..., heads, columns] and returns the heads side by side."""
    return lambda theirs, x, draw: Call(theirs(x.unflatten(-1, (heads, -1))))


def chunked(
    *chunks: str | None,
    linear: str = "linear",
    dim: int = 1,
    rows: str = "sample",
    arguments: str = "emb",
    returned: Sequence[int] | None = None,
) -> Callable[..., Call]:
    """AdaLN: a linear layer makes the chunks, of which the named ones are operands.

    ``arguments`` names what the class takes besides x.  ``returned`` are the places
    of the normed rows in what it returns, if that is a tuple.
    """

    def call(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
        shape = (x.shape[0],) if rows == "sample" else x.shape[:-1]
        made = draw.conditioning(*shape, len(chunks) * x.shape[-1])
        theirs.get_submodule(linear).returns = made
        parts = zip(chunks, made.chunk(len(chunks), dim=dim), strict=True)
        operands = {name: part for name, part in parts if name}
        found = theirs(x, **{arguments: made})
        if returned is not None:
            picked = tuple(found[i] for i in returned)
            found = picked[0] if len(picked) == 1 else picked
        return Call(found, operands)

    return call


def in_block(
    branch: str,
    *,
    norm: str | None = None,
    after: str | None = None,
    source: str | None = None,
    wrap: Callable[[torch.Tensor], Any] = lambda x: x,
    run: Callable[[Any, torch.Tensor], Any] = lambda block, r: block(r),
) -> Callable[..., Call]:
    """A residual addition inside a real block, whose ``branch`` returns x.

    ``norm`` is the norm of the sum (pre_add): its output and its input are compared.
    ``after`` is what reads the sum (post_add): its input is compared.  ``source`` is
    the stub that returns the residual, where that is not the input of the block.
    """

    def call(theirs: Any, x: torch.Tensor, draw: Draw) -> Call:
        residual = draw.like_x()
        for stub in theirs.modules():
            if isinstance(stub, Stub):
                stub.returns = x
        theirs.get_submodule(branch).returns = wrap(x)
        if source is not None:
            theirs.get_submodule(source).returns = residual
        watch = Watch(theirs.get_submodule(norm or after))
        run(theirs, residual)
        operands = {"residual": residual}
        if norm is None:
            return Call(watch.seen, operands)
        return Call((watch.made, watch.seen), operands)

    return call
