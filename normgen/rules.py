"""Rules that tie fields of a norm together.

Each rule yields pairs of (dotted field, what is wrong with it beside the others).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from normgen.fields import LARGEST_CHANNEL_ROW, LARGEST_REGISTER_ROW, MAX_GROUPS

if TYPE_CHECKING:
    from normgen.spec import Norm

Conflicts = Iterator[tuple[str, str]]


def conflicts(norm: Norm) -> Conflicts:
    """Everything that does not go together in a norm."""
    for rule in (_eps, _statistic, _affine, _operands, _residual, _outputs, _lengths):
        yield from rule(norm)


def is_default(norm: Norm, field: str) -> bool:
    """Whether a field of a norm has its default."""
    return bool(getattr(norm, field) == type(norm).model_fields[field].default)


def _eps(norm: Norm) -> Conflicts:
    if norm.eps_placement == "none" and not is_default(norm, "eps"):
        yield "eps", "eps_placement: none has no eps"


def _statistic(norm: Norm) -> Conflicts:
    made = norm.statistics
    if norm.variant != "layer_norm":
        if not made.centered:
            yield "statistics.centered", "only layer_norm is centered"
        if made.variance == "unbiased":
            yield "statistics.variance", "only layer_norm has a variance"
    elif made.columns != "all":
        yield "statistics.columns", "layer_norm takes its statistic of whole rows"
    if made.columns != "all":
        if norm.group_size is not None:
            yield "statistics.columns", "groups have a statistic of all their columns"
        if norm.hidden_size == "dynamic":
            yield "statistics.columns", "rows of any length may have fewer (dynamic)"
        for length in norm.lengths:
            if made.columns > length:
                yield "statistics.columns", f"more than a row of {length} has"
    if made.variance == "unbiased" and 1 in norm.normalized_lengths:
        yield "statistics.variance", "one column has no unbiased variance"
    if norm.rounding.rstd == "io" and (
        made.root == "sqrt" or made.precision != "float32"
    ):
        yield (
            "rounding.rstd",
            "needs an rstd in float32 (statistics.root: rsqrt, precision: float32)",
        )
    if norm.max_norm is not None:
        if norm.variant != "l2_norm":
            yield "max_norm", "only l2_norm shortens rows"
        if norm.eps_placement not in ("outside_sqrt", "none"):
            yield (
                "eps_placement",
                "max_norm needs outside_sqrt: max_norm / (norm + eps)",
            )
        if made.root == "sqrt":
            yield "statistics.root", "max_norm multiplies by a factor"
        if norm.rounding.rstd == "io":
            yield "rounding.rstd", "there is no rstd, but the factor of max_norm"


def _affine(norm: Norm) -> Conflicts:
    affine, rounding = norm.affine, norm.rounding
    has_parameters = norm.has_weight or affine.bias
    if affine.weight_offset and not norm.has_weight:
        yield "affine.weight_offset", "there is no weight to add it to (weight: none)"
    if affine.offset_precision == "param" and not affine.weight_offset:
        yield "affine.offset_precision", "there is no weight_offset it could apply to"
    elif affine.offset_precision == "param" and not _is_short(affine.weight_offset):
        yield (
            "affine.weight_offset",
            "not exact in bfloat16 (offset_precision: param)",
        )
    if affine.dtype != "any" and not has_parameters:
        yield "affine.dtype", "there is no parameter it could apply to"
    for field in ("input", "normalized"):
        if getattr(rounding, field) == "weight" and not norm.has_weight:
            yield f"rounding.{field}", "there is no weight whose dtype could be taken"
    if rounding.affine == "io" and not has_parameters:
        yield "rounding.affine", 'there is no affine part; use "normalized: io"'
    if affine.position != "after":
        if not norm.has_weight:
            yield "affine.position", "there is no weight (weight: none)"
        if norm.second_affine:
            yield "second_affine", "weights multiply x_hat then (position: after)"
    if affine.position == "factor":
        if affine.weight_offset:
            yield "affine.weight_offset", "the weight alone multiplies rstd (factor)"
        if rounding.normalized != "none" or norm.scale is not None:
            yield "affine.position", "there is no x_hat to round or scale (factor)"
        if norm.statistics.root == "sqrt" or norm.max_norm is not None:
            yield "affine.position", "there is no rstd to multiply (root: sqrt)"
        if norm.group_size is not None:
            yield "group_size", "a group has no weight to multiply its rstd (factor)"
    if affine.weight == "per_group" and norm.group_size is None:
        yield "affine.weight", "there are no groups (group_size)"
    if affine.weight == "per_head" and norm.group_size is not None:
        yield "group_size", "a head is a group already (weight: per_head)"
    if norm.second_affine and not has_parameters:
        yield "second_affine", "there is no first"


def _operands(norm: Norm) -> Conflicts:
    if norm.axis == "channel":
        if norm.group_size is not None:
            yield "group_size", "groups are of the last axis"
        if norm.affine.weight == "per_head":
            yield "affine.weight", "heads have rows of the last axis"
        if norm.strategy != "auto":
            yield "strategy", "the channel axis has a strategy of its own"
    modulation = norm.modulation
    modulated_twice = modulation is not None and modulation.second
    if modulation is not None and norm.second_affine:
        yield "modulation", "there are two results that it could apply to"
    shifts = modulation is not None and modulation.operands == "shift"
    if shifts and modulation is not None and modulation.factor != "one_plus":
        yield "modulation.factor", "there is no scale it could apply to"
    if norm.second_affine or modulated_twice:
        if norm.gate is not None and norm.gate.position == "after":
            yield "gate", "a gate after the norm has one result to multiply"
        if norm.post_activation != "none":
            yield "post_activation", "there are two results"
        if norm.residual == "post_add":
            yield "residual", "there are two results that it could be added to"


def _residual(norm: Norm) -> Conflicts:
    if norm.residual == "none":
        for field in (
            "residual_sum",
            "residual_dtype",
            "residual_in_place",
            "branch_scale",
            "residual_scale",
        ):
            if not is_default(norm, field):
                yield field, "there is no residual it could apply to (residual: none)"
    elif norm.residual_in_place and norm.backward:
        yield "residual_in_place", "overwriting the residual requires backward: false"
    elif norm.residual_in_place and norm.axis == "channel":
        yield "residual_in_place", "rows of the channel axis are not overwritten"
    unrounded = norm.residual == "post_add" and norm.residual_sum == "float32"
    if unrounded and norm.out_dtype != "same":
        yield (
            "out_dtype",
            "norm(x) is not rounded before the addition (residual_sum: float32), "
            "and the sum has residual_dtype",
        )
    branch = norm.branch_scale
    if branch is not None:
        if (branch.constant is None) == (branch.per is None):
            yield "branch_scale", "expected either constant or per"
        for field, default in (("activation", "none"), ("precision", "param")):
            if branch.per is None and getattr(branch, field) != default:
                yield f"branch_scale.{field}", "there is no tensor it could apply to"


def _outputs(norm: Norm) -> Conflicts:
    if norm.save_stats == "none" and norm.backward:
        yield "save_stats", "the backward pass reads the statistics (backward: true)"
    if norm.output == "factor":
        fields = ("affine", "gate", "modulation", "residual", "scale", "max_norm")
        for field in (*fields, "post_activation", "second_affine", "group_size"):
            allowed = field == "affine" and not (norm.has_weight or norm.affine.bias)
            if not allowed and not is_default(norm, field):
                yield field, "only the factor of the row is returned (output: factor)"
        if norm.has_weight:
            yield "affine.weight", "output: factor needs affine: {weight: none}"
        if norm.statistics.root == "sqrt":
            yield "statistics.root", "the factor is what rows are multiplied with"
        if norm.statistics.columns != "all":
            yield "statistics.columns", "the factor is of whole rows (output: factor)"
        if not norm.statistics.centered:
            yield "statistics.centered", "there is no x_hat (output: factor)"
        if norm.rounding.normalized != "none":
            yield "rounding.normalized", "there is no x_hat (output: factor)"
    if norm.replaces and norm.residual != "none":
        yield "replaces", "a module that takes a residual stands for no other"
    modulation = norm.modulation
    second = norm.second_affine or (modulation is not None and modulation.second)
    if norm.replaces and (second or norm.save_stats == "always"):
        yield "replaces", "a module that returns several tensors stands for no other"


def _lengths(norm: Norm) -> Conflicts:
    group = norm.group_size
    for length in norm.lengths:
        if group is not None and length % group:
            yield "group_size", f"{length} columns are no multiple of {group}"
        if group is not None and length // group > MAX_GROUPS:
            yield "group_size", f"{length // group} groups are more than {MAX_GROUPS}"
    if group is not None and norm.hidden_size == "dynamic":
        yield "hidden_size", "groups are of rows of known lengths"
    limit, why = LARGEST_REGISTER_ROW.get(norm.strategy), f"strategy {norm.strategy}"
    advice = "; use loop or auto"
    if norm.axis == "channel":
        limit, why, advice = LARGEST_CHANNEL_ROW, "axis channel", ""
    for length in norm.normalized_lengths:
        if limit is not None and length > limit:
            field = "hidden_size" if group is None else "group_size"
            yield (
                field,
                f"{why} holds at most {limit} columns, got {length}{advice}",
            )


def _is_short(value: float) -> bool:
    """Whether bfloat16 and float16 hold a number of at most 1024 exactly: 8 bits."""
    mantissa, _ = math.frexp(value)
    return mantissa * 2**8 == int(mantissa * 2**8) and abs(value) >= 2.0**-14
