"""The spec: what a norm is, as frozen data.

The fields and their defaults are the language that users write; the descriptions here
are the ones that the JSON Schema and the docs print.  Rules that tie two fields
together are in :func:`conflicts`.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
import struct
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

DType = Literal["float32", "bfloat16", "float16"]
DTYPES = ("float32", "bfloat16", "float16")
NAME = "[a-z][a-z0-9]*(_[a-z0-9]+)*"
MAX_HIDDEN_SIZE = 2**30  # column indices stay in int32, whatever the block
MAX_NAME_LENGTH = 24  # so that generated lines fit their width
SMALLEST_NORMAL = 2.0**-126  # of float32; below it GPUs flush to zero
LARGEST_REGISTER_ROW = {"row": 16384, "rows": 4096}

#: words of a name that stand in capitals in the name of its class
_ACRONYMS = {"rms": "RMS", "qk": "QK", "q": "Q", "k": "K", "ln": "LN"}
_RESERVED = {
    *("torch", "triton", "tl", "self"),
    *("x", "weight", "bias", "residual", "eps", "mean", "rstd"),
    *keyword.kwlist,
    *keyword.softkwlist,
    *dir(builtins),
}


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("normgen", "{message}", {"message": message})


def _expect(expected: str, *, hint_number: bool = False) -> WrapValidator:
    """One sentence for a union, where pydantic would list each branch's complaint."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            hint = ""
            if hint_number and isinstance(value, str) and _is_number(value):
                hint = "; write the number without quotes"
            raise _error(f"expected {expected}, got {value!r}{hint}") from None

    return WrapValidator(check)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def class_name(name: str) -> str:
    """The nn.Module of a function: ``add_rms_norm`` -> ``AddRMSNorm``."""
    return "".join(_ACRONYMS.get(p, p.capitalize()) for p in name.split("_"))


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise _error(
            f"{name!r} is no lower-case identifier: letters, digits and single "
            "underscores, a letter first, such as rms_norm"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise _error(f"{name!r} is longer than {MAX_NAME_LENGTH} characters")
    for made in (name, class_name(name)):
        if made in _RESERVED:
            raise _error(
                f"{name!r} would shadow {made}, which Python or the generated "
                "file needs"
            )
    return name


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = [v for i, v in enumerate(values) if v in values[:i]]
    if repeated:
        raise _error(f'"{repeated[0]}" is listed twice')
    return values


def _check_eps(eps: float | str) -> float | str:
    if isinstance(eps, str):
        return eps
    if eps <= 0:
        raise _error(f"expected a number above 0, got {eps:g}")
    if eps > 1:
        raise _error(f"expected at most 1, got {eps:g}")
    if struct.unpack("f", struct.pack("f", eps))[0] < SMALLEST_NORMAL:
        raise _error(
            f"{eps:g} is 0 in float32 arithmetic on a GPU; the smallest is 1.18e-38"
        )
    return float(eps)


def _check_version(version: int) -> int:
    if version > 1:
        raise _error(
            f"version {version} is newer than this normgen understands (1): "
            "pip install --upgrade normgen"
        )
    if version < 1:
        raise _error(f"expected 1, got {version}")
    return version


Length = Annotated[int, Field(ge=1, le=MAX_HIDDEN_SIZE)]
Lengths = Annotated[
    tuple[Length, ...], Field(strict=False, min_length=1), AfterValidator(_unique)
]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False
    )


class Affine(_Model):
    """Weight and bias: which there are, and their precision."""

    weight: Literal["vector", "none"] = Field(
        default="vector", description="Learned scale of shape (hidden_size,), or none."
    )
    bias: bool = Field(
        default=False, description="Learned shift of shape (hidden_size,)."
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


class Rounding(_Model):
    """Casts of the normalized row and of the affine result."""

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


class Norm(_Model):
    """One norm: an entry of ``kernels``."""

    name: Annotated[str, AfterValidator(_check_name)] = Field(
        json_schema_extra={"pattern": f"^{NAME}$", "maxLength": MAX_NAME_LENGTH},
        description="Name of the generated function; kernels and module are named "
        "after it.",
    )
    variant: Literal["rms_norm", "layer_norm"] = Field(
        description="The statistic: the mean of squares, or mean and variance."
    )
    hidden_size: Annotated[
        Length | Lengths | Literal["dynamic"],
        _expect(
            f"an integer from 1 to {MAX_HIDDEN_SIZE}, a list of different ones, "
            'or "dynamic"'
        ),
    ] = Field(
        description="Row length: one, several, or any (dynamic: one compile a length)."
    )
    dtype: Annotated[
        tuple[DType, ...],
        Field(strict=False, min_length=1),
        AfterValidator(_unique),
    ] = Field(
        default=("float32", "bfloat16", "float16"),
        description="The dtypes of x that the kernels take.",
    )
    eps: Annotated[
        float | Literal["argument"],
        _expect('a number or "argument"', hint_number=True),
        AfterValidator(_check_eps),
    ] = Field(description="The epsilon, baked in; or argument: passed with every call.")
    eps_placement: Literal["inside_sqrt", "outside_sqrt"] = Field(
        default="inside_sqrt",
        description="Where eps stands: 1 / sqrt(s + eps), or 1 / (sqrt(s) + eps).",
    )
    affine: Affine = Field(
        default=Affine(),
        description="The learned scale and shift, and their precision.",
    )
    rounding: Rounding = Field(
        default=Rounding(), description="The roundings that no type promotion implies."
    )
    out_dtype: Literal["same", "promote", "float32", "bfloat16", "float16"] = Field(
        default="same",
        description="Dtype of y: that of x, what eager torch would return (promote), "
        "or one dtype.",
    )
    residual: Literal["none", "pre_add", "post_add"] = Field(
        default="none",
        description="pre_add: y = norm(x + residual), and the sum is returned too; "
        "post_add: y = residual + norm(x).",
    )
    residual_sum: Literal["rounded", "float32"] = Field(
        default="rounded",
        description="pre_add: statistics of the stored (rounded) sum, or of the "
        "unrounded one. post_add: norm(x) is rounded to out_dtype before the "
        "addition, or not.",
    )
    residual_dtype: Literal["same", "float32"] = Field(
        default="same", description="Dtype of the residual and of the returned sum."
    )
    residual_in_place: bool = Field(
        default=False,
        description="Write the sum over the residual; requires backward: false.",
    )
    save_stats: Literal["auto", "always", "none"] = Field(
        default="auto",
        description="rstd (and mean): kept when a gradient will need them, also "
        "returned (always), or never.",
    )
    backward: bool = Field(
        default=True,
        description="Generate the backward kernels and the autograd wiring.",
    )
    strategy: Literal["auto", "row", "rows", "loop"] = Field(
        default="auto",
        description="How a row is mapped to the machine: one row a program, several "
        "rows a program, or a row in chunks. auto: by row length.",
    )
    batch_invariant: bool = Field(
        default=True,
        description="Launch constants never depend on the number of rows, so that a "
        "row's result does not depend on its batch.",
    )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The row lengths that the spec lists; empty where any will do."""
        if isinstance(self.hidden_size, int):
            return (self.hidden_size,)
        return () if self.hidden_size == "dynamic" else tuple(self.hidden_size)

    @property
    def has_weight(self) -> bool:
        return self.affine.weight != "none"

    @property
    def statistics_on_request(self) -> bool:
        """Whether the forward kernel stores the statistics only when asked to."""
        return self.save_stats == "auto" and self.backward

    @model_validator(mode="after")
    def _fields_agree(self) -> Norm:
        found = list(conflicts(self))
        if found:
            raise PydanticCustomError(
                "conflicts", "fields disagree", {"conflicts": found}
            )
        return self


def _is_short(value: float) -> bool:
    """Whether bfloat16 and float16 hold a number of at most 1024 exactly: 8 bits."""
    mantissa, _ = math.frexp(value)
    return mantissa * 2**8 == int(mantissa * 2**8) and abs(value) >= 2.0**-14


def conflicts(norm: Norm) -> Iterator[tuple[str, str]]:
    """Pairs of (dotted field, what is wrong with it beside the other fields)."""
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
    if rounding.normalized == "weight" and not norm.has_weight:
        yield "rounding.normalized", "there is no weight whose dtype could be taken"
    if rounding.affine == "io" and not has_parameters:
        yield "rounding.affine", 'there is no affine part; use "normalized: io"'
    if norm.residual == "none":
        for field in ("residual_sum", "residual_dtype", "residual_in_place"):
            if getattr(norm, field) != Norm.model_fields[field].default:
                yield field, "there is no residual it could apply to (residual: none)"
    elif norm.residual_in_place and norm.backward:
        yield "residual_in_place", "overwriting the residual requires backward: false"
    unrounded = norm.residual == "post_add" and norm.residual_sum == "float32"
    if unrounded and norm.out_dtype != "same":
        yield (
            "out_dtype",
            "norm(x) is not rounded before the addition (residual_sum: float32), "
            "and the sum has residual_dtype",
        )
    if norm.save_stats == "none" and norm.backward:
        yield "save_stats", "the backward pass reads the statistics (backward: true)"
    limit = LARGEST_REGISTER_ROW.get(norm.strategy)
    for length in norm.lengths:
        if limit is not None and length > limit:
            yield (
                "hidden_size",
                f"strategy {norm.strategy} holds at most {limit} columns, "
                f"got {length}; use loop or auto",
            )


class SpecFile(_Model):
    """A whole spec file."""

    version: Annotated[int, AfterValidator(_check_version)] = Field(
        json_schema_extra={"const": 1}, description="Version of the spec language: 1."
    )
    kernels: Annotated[tuple[Norm, ...], Field(strict=False, min_length=1)] = Field(
        description="The norms of the module, one entry each."
    )

    @model_validator(mode="after")
    def _names_differ(self) -> SpecFile:
        names = [norm.name for norm in self.kernels]
        taken: dict[str, int] = {}
        found = []
        for i, name in enumerate(names):
            for made in (name, f"{name}_reference", class_name(name)):
                first = taken.setdefault(made, i)
                if first != i:
                    message = f'"{made}" is made by kernels[{first}]'
                    found.append((f"kernels[{i}].name", message))
                    break
        if found:
            raise PydanticCustomError("conflicts", "names clash", {"conflicts": found})
        return self
