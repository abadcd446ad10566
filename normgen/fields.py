"""What the fields of a spec may hold: types with their checks, and the blocks.

A block is a field that has fields of its own.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
import struct
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

DType = Literal["float32", "bfloat16", "float16"]
DTYPES = ("float32", "bfloat16", "float16")
NAME = "[a-z][a-z0-9]*(_[a-z0-9]+)*"
MAX_HIDDEN_SIZE = 2**30  # column indices stay in int32, whatever the block
MAX_NAME_LENGTH = 24  # so that generated lines fit their width
#: Stands for a field that is required beside the others that a spec has.
ABSENT = object()
SMALLEST_NORMAL = 2.0**-126  # of float32; below it GPUs flush to zero
LARGEST_REGISTER_ROW = {"row": 16384, "rows": 4096}
LARGEST_CHANNEL_ROW = 4096
MAX_GROUPS = 65535  # of a row: the limit of a grid's second axis

#: words of a name that stand in capitals in the name of its class
_ACRONYMS = {"rms": "RMS", "qk": "QK", "q": "Q", "k": "K", "ln": "LN"}
_RESERVED = {
    *("torch", "triton", "tl", "self", "patch", "unpatch", "PatchReport"),
    *("x", "weight", "bias", "weight2", "bias2", "residual", "gate", "scale", "shift"),
    *("scale2", "shift2", "branch_scale", "eps", "mean", "rstd", "std", "rms", "norm"),
    *keyword.kwlist,
    *keyword.softkwlist,
    *dir(builtins),
}


def error(message: str) -> PydanticCustomError:
    return PydanticCustomError("normgen", "{message}", {"message": message})


def expect(expected: str, *, hint_number: bool = False) -> WrapValidator:
    """One sentence for a union, where pydantic would list each branch's complaint."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            hint = ""
            if hint_number and isinstance(value, str) and _is_number(value):
                hint = "; write the number without quotes"
            raise error(f"expected {expected}, got {value!r}{hint}") from None

    return WrapValidator(check)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def class_name(name: str) -> str:
    """The nn.Module of a function: ``add_rms_norm`` -> ``AddRMSNorm``."""
    return "".join(_ACRONYMS.get(p, p.capitalize()) for p in name.split("_"))


def check_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise error(
            f"{name!r} is no lower-case identifier: letters, digits and single "
            "underscores, a letter first, such as rms_norm"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise error(f"{name!r} is longer than {MAX_NAME_LENGTH} characters")
    for made in (name, class_name(name)):
        if made in _RESERVED:
            raise error(
                f"{name!r} would shadow {made}, which Python or the generated "
                "file needs"
            )
    return name


def check_class_path(path: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path):
        raise error(f"{path!r} is no path of a class, such as package.module.Class")
    package, _, name = path.rpartition(".")
    if package == "torch.nn":
        defined = f"torch.nn.modules.normalization.{name}"
        raise error(f"{path!r} is a second name of a class; write {defined}")
    return path


def unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = [v for i, v in enumerate(values) if v in values[:i]]
    if repeated:
        raise error(f'"{repeated[0]}" is listed twice')
    return values


def check_present(value: Any) -> Any:
    if value is ABSENT:
        raise PydanticCustomError("missing", "required field is missing")
    return value


def check_eps(eps: float | str) -> float | str:
    if isinstance(eps, str):
        return eps
    if eps <= 0:
        raise error(f"expected a number above 0, got {eps:g}")
    if eps > 1:
        raise error(f"expected at most 1, got {eps:g}")
    if struct.unpack("f", struct.pack("f", eps))[0] < SMALLEST_NORMAL:
        raise error(
            f"{eps:g} is 0 in float32 arithmetic on a GPU; the smallest is 1.18e-38"
        )
    return float(eps)


def check_given(value: Any) -> Any:
    if value is None:
        raise error(
            "got nothing; leave the field out, or write {} for a block's defaults"
        )
    return value


def check_not_zero(number: Any) -> Any:
    if number == 0:
        raise error("expected a number other than 0, got 0")
    return number


def check_version(version: int) -> int:
    if version > 1:
        raise error(
            f"version {version} is newer than this normgen understands (1): "
            "pip install --upgrade normgen"
        )
    if version < 1:
        raise error(f"expected 1, got {version}")
    return version


Length = Annotated[int, Field(ge=1, le=MAX_HIDDEN_SIZE)]
Lengths = Annotated[
    tuple[Length, ...], Field(strict=False, min_length=1), AfterValidator(unique)
]


class Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False
    )


class Affine(Model):
    """Weight and bias: which there are, and their precision."""

    weight: Literal["vector", "none", "per_head", "per_group"] = Field(
        default="vector",
        description="Learned scale: [hidden_size]; none; [heads, hidden_size] for x "
        "[.., heads, hidden_size]; or [group_size], shared by all groups.",
    )
    bias: bool = Field(
        default=False, description="Learned shift, of the shape of the weight."
    )
    position: Literal["after", "before", "factor"] = Field(
        default="after",
        description="What the weight multiplies: x_hat; the row, before its statistic "
        "is taken; or rstd, so that x * (rstd * weight) is formed.",
    )
    dtype: Literal["any", "same", "float32", "bfloat16", "float16"] = Field(
        default="any",
        description="Dtype of the parameters: any, the same as x, or one dtype.",
    )
    weight_offset: float = Field(
        default=0.0,
        ge=-1024,
        le=1024,
        description="The scale is weight_offset + weight: 1 for Gemma's (1 + w).",
    )
    offset_precision: Literal["float32", "param"] = Field(
        default="float32",
        description="Precision that weight_offset + weight is formed in: float32, or "
        "the weight's own dtype.",
    )


class Rounding(Model):
    """Casts that no type promotion implies."""

    input: Literal["none", "io", "weight"] = Field(
        default="none",
        description="What the row is rounded to before its statistic is taken: "
        "nothing, the dtype of x, or that of the weight (Mamba 2).",
    )
    rstd: Literal["none", "io"] = Field(
        default="none",
        description="What rstd is rounded to: nothing, or the dtype of x "
        "(DeepSeek-V4).",
    )
    normalized: Literal["none", "io", "weight"] = Field(
        default="none",
        description="What x_hat is rounded to before the affine part: nothing (Gemma, "
        "torch), the dtype of x (Llama), or the dtype of the weight (T5).",
    )
    affine: Literal["none", "io"] = Field(
        default="none",
        description="What the result of the affine part is rounded to: nothing, or "
        "the dtype of x.",
    )


class Statistics(Model):
    """How the statistic is taken, and what is done with it."""

    precision: Literal["float32", "io", "io_stepwise"] = Field(
        default="float32",
        description="io: reductions accumulate in float32, and every value from "
        "their results on is rounded to the dtype of x, as torch.var or .norm() of a "
        "half precision and what follows are; io_stepwise: their terms are rounded "
        "too, as in a norm written out in that dtype.",
    )
    root: Literal["rsqrt", "sqrt"] = Field(
        default="rsqrt",
        description="Multiply by the inverse root, or divide by the root.",
    )
    centered: bool = Field(
        default=True,
        description="layer_norm: x_hat is made of x - mean, or of x as it is.",
    )
    variance: Literal["biased", "unbiased"] = Field(
        default="biased",
        description="layer_norm: squares are divided by the row length, or by one "
        "less.",
    )
    columns: Annotated[Length | Literal["all"], expect('an integer or "all"')] = Field(
        default="all",
        description="rms_norm and l2_norm: the statistic is of the first so many "
        "columns; all are normalized.",
    )


class Gate(Model):
    """A gate: a tensor like x whose activation multiplies the row."""

    position: Literal["after", "before"] = Field(
        default="after",
        description="A gate like x multiplies the affine result, or the row before "
        "its statistic is taken. gate: {} takes all defaults.",
    )
    activation: Literal["silu", "sigmoid"] = Field(
        default="silu", description="The activation of the gate."
    )
    precision: Literal["float32", "io"] = Field(
        default="float32",
        description="The activation of the gate and the product are float32, or "
        "rounded as types promote.",
    )


class Modulation(Model):
    """Adaptive scale and shift (AdaLN): y * (1 + scale) + shift."""

    operands: Literal["scale_shift", "scale", "shift"] = Field(
        default="scale_shift",
        description="Adaptive scale and shift (AdaLN), tensors made outside: y * (1 "
        "+ scale) + shift. modulation: {} takes all defaults.",
    )
    per: Literal["sample", "row"] = Field(
        default="sample",
        description="One vector a sample, [x.shape[0], hidden_size] with ones "
        "between or not, or one a row, of the shape of x.",
    )
    factor: Literal["one_plus", "plain", "sigmoid"] = Field(
        default="one_plus",
        description="y is multiplied by 1 + scale, scale, or sigmoid(scale).",
    )
    precision: Literal["param", "float32"] = Field(
        default="param",
        description="The factor is formed in the dtype of scale and results are "
        "rounded as types promote; or all is float32 (Wan).",
    )
    second: bool = Field(
        default=False,
        description="Modulate a second time, by scale2 and shift2, to y2 (SD 3.5).",
    )


class BranchScale(Model):
    """What scales the branch that a residual is added to."""

    constant: Annotated[
        Annotated[float, Field(ge=-1024, le=1024)] | None,
        AfterValidator(check_not_zero),
    ] = Field(default=None, description="A number.")
    per: Literal["channel", "sample", "row"] | None = Field(
        default=None,
        description="A tensor: learned, [hidden_size]; one vector a sample, "
        "[x.shape[0], hidden_size]; or one a row, of the shape of x.",
    )
    activation: Literal["none", "tanh"] = Field(
        default="none", description="An activation of that tensor (Lumina 2)."
    )
    precision: Literal["param", "float32"] = Field(
        default="param",
        description="The product is rounded as types promote, or float32.",
    )
