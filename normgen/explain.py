"""A plan in words: what a norm computes, how it rounds, what it moves, how it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normgen import launch, wording
from normgen.adjoint import gradient_name
from normgen.dtypes import CONCRETE, Dtype
from normgen.launch import Direction
from normgen.plan import NormPlan
from normgen.spec import Norm


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
    length = max(plan.norm.lengths, default=None)
    for dtype in plan.norm.dtype:
        for direction, tensors in _moved(plan):
            value = sum(_size(moved, dtype) for moved in tensors)
            yield {
                "x": dtype,
                "direction": direction,
                "bytes_per_value": value,
                "bytes_per_row": None if length is None else value * length,
            }


def _moved(plan: NormPlan) -> Iterator[tuple[Direction, list[Dtype]]]:
    """The dtypes of the tensors read and written per element."""
    known = plan.graph.dtypes
    read = [t for t, space in plan.graph.tensors.items() if space.per_row]
    yield "forward", [known[t] for t in (*read, *plan.graph.results)]
    for kernel in plan.backward_kernels[:1]:
        incoming = {gradient_name(t): t for t in plan.graph.results}
        loaded = [known[incoming.get(t, t)] for t in kernel.elements]
        made = [plan.gradient_dtype(g) for g in kernel.gradients]
        yield "backward", [*loaded, *made]


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
                    "why": launch.reason(
                        direction, branch.strategy.name, plan.norm.strategy
                    ),
                }


def advice(plan: NormPlan) -> Iterator[str]:
    """What a person who wrote this spec may want to know."""
    norm = plan.norm
    if _is_torchs_own(norm):
        yield (
            f"torch.nn.functional.{norm.variant} computes this norm too; where it takes"
            " little of a step's time, torch will do as well."
        )
    if not norm.lengths:
        yield (
            "Every row length compiles its own kernels at first use; list the lengths "
            "in hidden_size where they are known."
        )
    for branch in plan.forward_branches:
        for length in branch.lengths if norm.lengths else ():
            block = launch.launch(length, "forward", branch.strategy.name).block_size
            idle = 100 * (-length % block) // (length + -length % block)
            if idle > 25:
                yield f"Rows of {length} leave {idle} % of their blocks' columns idle."
    any_weight = norm.has_weight and norm.affine.dtype == "any"
    if norm.out_dtype == "promote" and any_weight and norm.dtype != ("float32",):
        yield (
            "out_dtype: promote returns float32 where x is bfloat16 or float16 and the "
            "weight is float32, as the eager expression does."
        )
    if norm.backward and _has_bfloat16_parameters(norm):
        yield (
            "bfloat16 parameters near 1 lose updates below 2**-9; float32 parameters "
            "with bfloat16 x are supported (affine.dtype: any or float32)."
        )


def _has_bfloat16_parameters(norm: Norm) -> bool:
    """Whether the parameters may be bfloat16 and nothing else beside a bfloat16 x."""
    as_x = norm.affine.dtype == "same" and "bfloat16" in norm.dtype
    learned = norm.has_weight or norm.affine.bias
    return learned and (as_x or norm.affine.dtype == "bfloat16")


#: what a spec may say of a norm that torch.nn.functional has too
_OF_TORCH = {
    *("name", "variant", "hidden_size", "dtype", "eps", "affine", "save_stats"),
    *("backward", "strategy", "batch_invariant", "replaces"),
}


def _is_torchs_own(norm: Norm) -> bool:
    """Whether torch.nn.functional has this very norm."""
    said = norm.model_dump(exclude_defaults=True)
    affine = norm.affine
    return (
        norm.variant != "l2_norm"
        and set(said) <= _OF_TORCH
        and set(said.get("affine", {})) <= {"weight", "bias", "dtype"}
        and norm.save_stats != "always"
        and affine.dtype in ("any", "same")
        and affine.weight in ("vector", "none")
        and not (norm.variant == "rms_norm" and affine.bias)
    )
