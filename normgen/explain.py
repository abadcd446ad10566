"""A plan in words: what a norm computes, how it rounds, what it moves, how it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normgen import launch, wording
from normgen.dtypes import CONCRETE, Dtype
from normgen.launch import Direction
from normgen.plan import NormPlan


def explain(plan: NormPlan) -> dict[str, Any]:
    """The facts of one norm; plain data, fit for JSON."""
    return {
        "name": plan.name,
        "summary": wording.summary(plan),
        "formula": wording.formula(plan),
        "call": f"{plan.name}({', '.join(plan.arguments)})",
        "returns": list(plan.results),
        "numerics": wording.numerics(plan),
        "traffic": list(traffic(plan)),
        "launches": list(launches(plan)),
        "advice": list(advice(plan)),
    }


def traffic(plan: NormPlan) -> Iterator[dict[str, Any]]:
    """Bytes read and written: of a value, and of the longest row where it is known.

    Parameters are left out: they are read once for many rows.
    """
    length = plan.norm.lengths[-1] if plan.norm.lengths else None
    for dtype in plan.norm.dtype:
        for direction, tensors in _moved(plan):
            value = sum(_size(plan.graph.dtypes[t], dtype) for t in tensors)
            yield {
                "x": dtype,
                "direction": direction,
                "bytes_per_value": value,
                "bytes_per_row": None if length is None else value * length,
            }


def _moved(plan: NormPlan) -> Iterator[tuple[Direction, list[str]]]:
    """The tensors read and written per element, by that of the same dtype."""
    read = [t for t, space in plan.graph.tensors.items() if space == "element"]
    yield "forward", [*read, *plan.graph.results]
    for kernel in plan.backward_kernels[:1]:
        incoming = {f"d{t}": t for t in plan.graph.results}
        yield "backward", [*(incoming.get(t, t) for t in kernel.elements), kernel.rows]


def _size(dtype: Dtype, x: str) -> int:
    """Bytes of a value, where parameters of any dtype have that of x."""
    atoms = {atom if atom in CONCRETE else x for atom in dtype}
    return 2 if atoms <= {"bfloat16"} or atoms <= {"float16"} else 4


def launches(plan: NormPlan) -> Iterator[dict[str, Any]]:
    """The strategy and constants of each row length, with the reason."""
    directions: tuple[Direction, ...] = ("forward", "backward")
    for direction in directions:
        for branch in plan.branches(direction):
            for length in branch.lengths:
                chosen = launch.launch(length, direction, branch.strategy.name)
                yield {
                    "direction": direction,
                    "row_length": length,
                    "or_longer": not plan.norm.lengths
                    and branch.largest is None
                    and length == branch.lengths[-1],
                    "strategy": branch.strategy.name,
                    "options": chosen.options,
                    "why": launch.RULES[direction, branch.strategy.name].why,
                }


def advice(plan: NormPlan) -> Iterator[str]:
    """What a person who wrote this spec may want to know."""
    norm = plan.norm
    op = {"rms_norm": "rms_norm", "layer_norm": "layer_norm"}[norm.variant]
    plain = all(
        (
            norm.residual == "none",
            norm.rounding.normalized == "none",
            norm.rounding.affine == "none",
            norm.out_dtype == "same",
            norm.eps_placement == "inside_sqrt",
            not norm.affine.weight_offset,
        )
    )
    if plain:
        yield (
            f"torch.nn.functional.{op} computes this norm too; where the norm takes "
            "little of a step's time, it will do as well."
        )
    if not norm.lengths:
        yield (
            "Every row length compiles its own kernels at first use; list the lengths "
            "in hidden_size where they are known."
        )
    for length in norm.lengths:
        block = launch.block_size(length)
        if length <= launch.LONGEST_ROW[1] and length / block < 0.75:
            idle = 100 * (block - length) // block
            yield f"Rows of {length} leave {idle} % of a block of {block} columns idle."
    if norm.out_dtype == "promote" and norm.affine.dtype == "any" and norm.has_weight:
        yield (
            "out_dtype: promote returns float32 where x is bfloat16 or float16 and the "
            "weight is float32, as the eager expression does."
        )
    if norm.affine.dtype == "same" and plan.parameters and norm.backward:
        yield (
            "bfloat16 parameters near 1 lose updates below 2**-9; float32 parameters "
            "with bfloat16 x are supported (affine.dtype: any or float32)."
        )
