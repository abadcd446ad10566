"""What a conformance case says: a class, how to make and call it, and its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance import adapters

#: (dtype of x, dtype of the parameters and of conditioning operands)
PAIRS = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("bfloat16", "float32"),
)
#: where no parameter could have another dtype than x, or the class refuses one
UNMIXED = PAIRS[:3]


@dataclass(frozen=True)
class Config:
    """A configuration object: its class, and what differs from the defaults."""

    source: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One class of a library beside one entry of a spec.

    ``source`` is the import path of a class or function, ``args`` and ``kwargs`` make
    it.  ``stubs`` names submodules that are replaced before: their inputs are looked
    at, or their outputs given.  ``state`` is the submodule whose state dict is loaded,
    or maps names of theirs to names of ours.  ``fused`` names the kernel of torch whose
    order of adding is not the reference's.  x has the shape (*lead, size, *after).
    """

    model: str
    source: str
    group: str
    spec: str | Mapping[str, Any]
    size: int
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stubs: tuple[str, ...] = ()
    call: Callable[..., adapters.Call] = adapters.plain
    state: str | Mapping[str, str] | Callable[..., Mapping[str, Any]] = ""
    fused: str | None = None
    lead: tuple[int, ...] = (2, 3)
    after: tuple[int, ...] = ()
    heads: int | None = None
    eps: float | None = None
    pairs: tuple[tuple[str, str], ...] = PAIRS
    magnitude: float = 1.0

    @property
    def name(self) -> str:
        """The class or function, without its modules."""
        return self.source.rsplit(".", 1)[-1]

    @property
    def id(self) -> str:
        entry = self.spec.split(":")[1] if isinstance(self.spec, str) else ""
        words = (self.model, self.name, entry, str(self.size))
        return "-".join(word for word in words if word).replace(" ", "_")
