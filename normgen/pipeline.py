"""Which steps a spec asks for, in their order, and the dtype of each input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from normgen import dtypes
from normgen import steps as s
from normgen.dtypes import FLOAT32, Dtype
from normgen.fields import Modulation
from normgen.spaces import COLUMN, ELEMENT, GROUP, HEAD, SAMPLE
from normgen.spec import Norm
from normgen.steps import Operand, Step

_WEIGHT_SPACES = {
    "vector": COLUMN,
    "none": COLUMN,
    "per_head": HEAD,
    "per_group": GROUP,
}
_PER = {"channel": COLUMN, "sample": SAMPLE, "row": ELEMENT}


@dataclass(frozen=True)
class Epilogue:
    """The steps from x_hat on: those that all results share, then each result's own."""

    shared: tuple[Step, ...]
    results: Mapping[str, tuple[Step, ...]]


def tensor_dtypes(norm: Norm) -> dict[str, Dtype]:
    """The dtype of each input: known where the spec fixes it, else the tensor's own."""
    x = dtypes.of(norm.dtype[0] if len(norm.dtype) == 1 else "x")

    def parameter(name: str) -> Dtype:
        own = {"any": dtypes.of(name), "same": x}
        return own.get(norm.affine.dtype) or dtypes.of(norm.affine.dtype)

    own = {operand.name: dtypes.of(operand.name) for operand in s.OPERANDS}
    learned = (s.WEIGHT, s.BIAS, s.WEIGHT2, s.BIAS2)
    return {
        **own,
        "x": x,
        "r": FLOAT32 if norm.residual_dtype == "float32" else x,
        **{operand.name: parameter(operand.name) for operand in learned},
    }


def out_dtype(norm: Norm, promotion: Dtype) -> Dtype:
    """The dtype of a result, before a residual is added to it."""
    named = {"same": tensor_dtypes(norm)["x"], "promote": promotion}
    return named.get(norm.out_dtype) or dtypes.of(norm.out_dtype)


def prologue(norm: Norm, tensors: Mapping[str, Dtype]) -> list[Step]:
    """The steps before the statistic."""
    made: list[Step] = []
    if norm.residual == "pre_add":
        made += branch_scale(norm)
        made.append(s.residual_sum(norm.residual_scale, norm.residual_sum == "rounded"))
    if norm.affine.position == "before":
        made.append(replace(weigh(norm, s.WEIGHT), promotes=s.WIDE))
    if norm.gate is not None and norm.gate.position == "before":
        made.append(gate(norm))
    cast = {"none": FLOAT32, "io": tensors["x"], "weight": tensors["w"]}
    return [*made, s.rounding("row_cast", cast[norm.rounding.input])]


def epilogue(norm: Norm, tensors: Mapping[str, Dtype]) -> Epilogue:
    """The steps after it."""
    normalized = {"none": FLOAT32, "io": tensors["x"], "weight": tensors["w"]}
    made = [s.rounding("rounded", normalized[norm.rounding.normalized])]
    if norm.scale is not None:
        made.append(s.times("rescaled", constant_scale(norm)))
    affine: list[Step] = []
    if norm.affine.position == "factor":
        wide = norm.statistics.precision == "float32"
        promotes = s.WIDE if wide else ("x", "w")
        affine.append(s.weigh_factor(operand(norm, s.WEIGHT), promotes))
    elif norm.has_weight and norm.affine.position == "after":
        affine.append(weigh(norm, s.WEIGHT))
    if norm.affine.bias:
        affine.append(s.add("shifted", operand(norm, s.BIAS)))
    if norm.second_affine:
        return Epilogue(
            tuple(made),
            {
                "y": tuple(affine + cast(norm, "affine", tensors)),
                "y2": tuple(second_affine(norm) + cast(norm, "affine2", tensors)),
            },
        )
    made += affine + cast(norm, "affine", tensors)
    modulation = norm.modulation
    if modulation is not None and modulation.second:
        return Epilogue(
            tuple(made),
            {
                "y": tuple(modulate(modulation, s.SCALE, s.SHIFT, "")),
                "y2": tuple(modulate(modulation, s.SCALE2, s.SHIFT2, "2")),
            },
        )
    if modulation is not None:
        made += modulate(modulation, s.SCALE, s.SHIFT, "")
    if norm.gate is not None and norm.gate.position == "after":
        made.append(gate(norm))
    if norm.post_activation != "none":
        made.append(s.activate(norm.post_activation))
    if norm.residual == "post_add":
        made += post_add(norm, tensors)
    return Epilogue((), {"y": tuple(made)})


def operand(norm: Norm, learned: Operand) -> Operand:
    """A weight or bias, in the index space that the spec gives it."""
    return replace(learned, space=_WEIGHT_SPACES[norm.affine.weight])


def weigh(norm: Norm, weight: Operand, suffix: str = "") -> Step:
    """The product with a weight, or with the sum of the offset and the weight."""
    weight, offset = operand(norm, weight), norm.affine.weight_offset
    if not offset:
        return s.multiply(f"scaled{suffix}", weight)
    precision = norm.affine.offset_precision
    gain = s.offset_factor(f"gain{suffix}", offset, weight, precision)
    return s.multiply(f"scaled{suffix}", weight, gain, precision=precision)


def second_affine(norm: Norm) -> list[Step]:
    """The second weight and bias of the same x_hat."""
    made = [weigh(norm, s.WEIGHT2, "2")] if norm.has_weight else []
    if norm.affine.bias:
        made.append(s.add("shifted2", operand(norm, s.BIAS2)))
    return made


def cast(norm: Norm, out: str, tensors: Mapping[str, Dtype]) -> list[Step]:
    """The rounding of an affine result, if there is one."""
    return [s.rounding(out, tensors["x"])] if norm.rounding.affine == "io" else []


def constant_scale(norm: Norm) -> str:
    """The constant factor of x_hat."""
    return "root_n" if norm.scale == "sqrt_hidden_size" else repr(norm.scale)


def gate(norm: Norm) -> Step:
    """The product with the activated gate."""
    assert norm.gate is not None
    precision: s.Precision = "float32" if norm.gate.precision == "float32" else "param"
    return s.multiply_activated(
        "gated", s.GATE, "activated_gate", norm.gate.activation, precision
    )


def modulate(
    modulation: Modulation, scale: Operand, shift: Operand, suffix: str
) -> list[Step]:
    """The product with the factor made of ``scale``, and the sum with ``shift``."""
    precision, space = modulation.precision, _PER[modulation.per]
    scale, shift = replace(scale, space=space), replace(shift, space=space)
    out, factor = f"modulated{suffix}", f"factor{suffix}"
    made: list[Step] = []
    if modulation.operands != "shift":
        offset = s.offset_factor(factor, 1.0, scale, precision)
        product = {
            "one_plus": lambda: s.multiply(out, scale, offset, precision=precision),
            "plain": lambda: s.multiply(out, scale, precision=precision),
            "sigmoid": lambda: s.multiply_activated(
                out, scale, factor, "sigmoid", precision
            ),
        }
        made.append(product[modulation.factor]())
    if modulation.operands != "scale":
        made.append(s.add(f"translated{suffix}", shift, precision))
    return made


def branch_scale(norm: Norm) -> list[Step]:
    """What is added to the residual, scaled."""
    branch = norm.branch_scale
    if branch is None:
        return []
    if branch.per is None:
        return [s.times("branch", repr(branch.constant))]
    tensor = replace(s.BRANCH, space=_PER[branch.per], learned=branch.per == "channel")
    if branch.activation == "none":
        return [s.multiply("branch", tensor, precision=branch.precision)]
    return [
        s.multiply_activated(
            "branch", tensor, "activated_alpha", branch.activation, branch.precision
        )
    ]


def post_add(norm: Norm, tensors: Mapping[str, Dtype]) -> list[Step]:
    """norm(x), as it is added to the residual, and the sum."""
    made: list[Step] = []
    if norm.residual_sum == "rounded" and norm.out_dtype != "promote":
        made.append(s.rounding("normed", out_dtype(norm, FLOAT32)))
    return [*made, *branch_scale(norm), s.add_residual("added", norm.residual_scale)]
