"""Specs that hold all pairs of field values, block by block.

All pairs of the whole language would take hundreds of specs.  The fields fall into
blocks whose values meet in one formula or one loop of a kernel; within a block every
pair is held by some spec.  Across blocks there are random specs of the whole language
(tests/kernels/test_random_specs.py).

* ``core``: the fields of plain norms, with everything that the host code decides;
* ``statistics``: from the row to x_hat, and back;
* ``affine``: what a weight multiplies, where it lies, and every rounding beside it;
* ``operands``: gates, modulations, activations and second results;
* ``residual``: what is added to what, scaled by what, and where it is stored.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from support.fields import IO, LANGUAGE, LENGTH, VALUES, problems
from support.pairs import Combination, Pair, covering_array

Axes = dict[str, tuple[Hashable, ...]]


def of(*fields: str, **some: tuple[Hashable, ...]) -> Axes:
    """Axes of fields with all their values, and of others with ``some``."""
    return {**{field: LANGUAGE[field] for field in fields}, **some}


@dataclass(frozen=True)
class Block:
    """Fields, and facts of the tensors: dtypes of x, of parameters, of the others."""

    axes: Axes

    @cached_property
    def _covered(self) -> tuple[list[Combination], set[Pair]]:
        return covering_array(self.axes, problems)

    @property
    def combinations(self) -> list[Combination]:
        return self._covered[0]

    @property
    def unreachable(self) -> set[Pair]:
        """The pairs that no combination was found for."""
        return self._covered[1]


STRATEGY = ("row", "rows", "loop")
KNOWN = (LENGTH, "dynamic")

BLOCKS = {
    "core": Block({**VALUES, "io": IO, "free": IO}),
    "statistics": Block(
        of(
            *("variant", "eps", "eps_placement", "group_size", "statistics.precision"),
            *("statistics.root", "statistics.centered", "statistics.variance"),
            *("statistics.columns", "max_norm", "rounding.input", "rounding.rstd"),
            *("normalized", "output"),
            hidden_size=KNOWN,
            strategy=STRATEGY,
            weight=("vector", "none"),
            save_stats=("auto", "always"),
            io=IO,
        )
    ),
    "affine": Block(
        of(
            *("weight", "bias", "affine.position", "second_affine", "group_size"),
            *("weight_offset", "offset_precision", "normalized", "affine_rounding"),
            *("rounding.input", "scale", "axis"),
            hidden_size=KNOWN,
            strategy=("auto", *STRATEGY),
            variant=("rms_norm", "layer_norm"),
            out_dtype=("same", "promote", "float32"),
            **{"statistics.precision": ("float32", "io")},
            io=IO,
            free=IO,
        )
    ),
    "operands": Block(
        of(
            *("weight", "second_affine", "group_size", "axis"),
            *("gate.position", "gate.activation", "gate.precision"),
            *("modulation.operands", "modulation.per", "modulation.factor"),
            *("modulation.precision", "modulation.second", "post_activation"),
            hidden_size=KNOWN,
            strategy=("auto", *STRATEGY),
            variant=("rms_norm", "layer_norm"),
            residual=("none", "pre_add"),
            normalized=("none", "io"),
            out_dtype=("same", "promote"),
            io=IO,
            others=IO,
        )
    ),
    "residual": Block(
        of(
            *("residual_sum", "residual_dtype", "residual_in_place", "axis"),
            *("branch_scale.per", "branch_scale.activation", "branch_scale.precision"),
            *("residual_scale", "backward"),
            hidden_size=KNOWN,
            strategy=("auto", *STRATEGY),
            residual=("pre_add", "post_add"),
            variant=("rms_norm", "layer_norm"),
            weight=("vector", "per_head", "per_group"),
            out_dtype=("same", "float32"),
            **{"affine.position": ("after", "before")},
            **{"gate.position": (None, "after", "before")},
            group_size=(None, LENGTH // 3),
            io=IO,
            others=IO,
        )
    ),
}

COMBINATIONS = [
    (name, combination)
    for name, block in BLOCKS.items()
    for combination in block.combinations
]
