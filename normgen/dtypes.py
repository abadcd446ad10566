"""Dtypes as symbols: what eager torch's promotion returns, before any tensor is there.

A :data:`Dtype` is a set of atoms whose promotion it is: a concrete dtype ("bfloat16"),
or the name of a tensor ("x", "w") that stands for whatever dtype that tensor will have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Dtype: TypeAlias = frozenset[str]

FLOAT32: Dtype = frozenset({"float32"})
CONCRETE = ("float32", "bfloat16", "float16")


def of(atom: str) -> Dtype:
    """The dtype that is one atom."""
    return frozenset({atom})


def promote(*dtypes: Dtype) -> Dtype:
    """``torch.promote_types`` over float32, bfloat16 and float16 (torch's table)."""
    atoms = frozenset[str]().union(*dtypes)
    if "float32" in atoms or {"bfloat16", "float16"} <= atoms:
        return FLOAT32
    return atoms


def store_rounds_alike(value: Dtype, stored: Dtype) -> bool:
    """Whether rounding once, to ``stored``, gives what rounding to ``value`` first
    does.

    It does where the value is never rounded at all, or where ``stored`` takes part in
    its promotion: then its dtype is either ``stored`` or float32.
    """
    return value == FLOAT32 or stored <= value


def in_torch(dtype: Dtype, atoms: Mapping[str, str]) -> str:
    """The dtype as a torch expression, from the expression of each atom."""
    known = {**atoms, **{name: f"torch.{name}" for name in CONCRETE}}
    first, *others = (known[atom] for atom in sorted(dtype, key=list(known).index))
    for other in others:
        first = f"torch.promote_types({first}, {other})"
    return first
