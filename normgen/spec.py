"""The spec: what a norm is, as frozen data.

The fields and their defaults are the language that users write; the descriptions here
are the ones that the JSON Schema and the docs print.  Rules that tie two fields
together are in :mod:`normgen.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from normgen.fields import (
    ABSENT,
    MAX_HIDDEN_SIZE,
    MAX_NAME_LENGTH,
    NAME,
    Affine,
    BranchScale,
    DType,
    Gate,
    Length,
    Lengths,
    Model,
    Modulation,
    Rounding,
    Statistics,
    check_class_path,
    check_eps,
    check_given,
    check_name,
    check_not_zero,
    check_present,
    check_version,
    class_name,
    expect,
    unique,
)
from normgen.rules import conflicts


class Norm(Model):
    """One norm: an entry of ``kernels``."""

    name: Annotated[str, AfterValidator(check_name)] = Field(
        json_schema_extra={"pattern": f"^{NAME}$", "maxLength": MAX_NAME_LENGTH},
        description="Name of the generated function; kernels and module are named "
        "after it.",
    )
    variant: Literal["rms_norm", "layer_norm", "l2_norm"] = Field(
        description="The statistic: the mean of squares, mean and variance, or the sum "
        "of squares."
    )
    hidden_size: Annotated[
        Length | Lengths | Literal["dynamic"],
        expect(
            f"an integer from 1 to {MAX_HIDDEN_SIZE}, a list of different ones, "
            'or "dynamic"'
        ),
    ] = Field(
        description="Row length: one, several, or any (dynamic: one compile a length)."
    )
    dtype: Annotated[
        tuple[DType, ...],
        Field(strict=False, min_length=1),
        AfterValidator(unique),
    ] = Field(
        default=("float32", "bfloat16", "float16"),
        description="The dtypes of x that the kernels take.",
    )
    eps: Annotated[
        float | Literal["argument"],
        expect('a number or "argument"', hint_number=True),
        BeforeValidator(check_present),
        AfterValidator(check_eps),
    ] = Field(
        default=0.0,
        description="The epsilon, baked in; or argument: passed with every call. "
        "Required, but with eps_placement: none.",
    )
    eps_placement: Literal[
        "inside_sqrt", "outside_sqrt", "clamp_norm", "clamp_stat", "none"
    ] = Field(
        default="inside_sqrt",
        description="Where eps stands: 1 / sqrt(s + eps), 1 / (sqrt(s) + eps), "
        "1 / max(sqrt(s), eps), 1 / sqrt(max(s, eps)), or 1 / sqrt(s) without one.",
    )
    group_size: Annotated[Length | None, BeforeValidator(check_given)] = Field(
        default=None,
        description="The statistic is taken of each group of so many adjacent columns; "
        "hidden_size is a multiple of it.",
    )
    axis: Literal["last", "channel"] = Field(
        default="last",
        description="The axis of a row: the last, or the second of x [N, C, ...], up "
        "to 4096 channels.",
    )
    statistics: Statistics = Field(
        default=Statistics(), description="How the statistic is taken."
    )
    max_norm: Annotated[
        Annotated[float, Field(ge=1e-15, le=2.0**16)] | None,
        BeforeValidator(check_given),
    ] = Field(
        default=None,
        description="l2_norm: rows are shortened to at most this norm, x * min(1, "
        "max_norm / (norm + eps)); eps_placement is outside_sqrt or none.",
    )
    scale: Annotated[
        Annotated[float, Field(ge=-(2.0**16), le=2.0**16)]
        | Literal["sqrt_hidden_size"]
        | None,
        expect('a number or "sqrt_hidden_size"'),
        BeforeValidator(check_given),
        AfterValidator(check_not_zero),
    ] = Field(
        default=None,
        description="A constant factor of x_hat, after it was rounded and before the "
        "weight.",
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
    second_affine: bool = Field(
        default=False,
        description="A second weight, and bias, of the same x_hat: weight2 and bias2 "
        "make y2 (GPT-NeoX's two norms).",
    )
    gate: Annotated[Gate | None, BeforeValidator(check_given)] = Field(
        default=None, description="A gate that multiplies the row, after or before."
    )
    modulation: Annotated[Modulation | None, BeforeValidator(check_given)] = Field(
        default=None, description="Adaptive scale and shift, made outside (AdaLN)."
    )
    post_activation: Literal[
        "none", "relu", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid"
    ] = Field(default="none", description="An activation of the result.")
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
    branch_scale: Annotated[BranchScale | None, BeforeValidator(check_given)] = Field(
        default=None,
        description="What is added to the residual is scaled: x (pre_add) or norm(x) "
        "(post_add), by a number (Granite), a learned vector (LayerScale) or a "
        "tensor (AdaLN-Zero).",
    )
    residual_scale: Annotated[
        Annotated[float, Field(ge=-1024, le=1024)] | None,
        BeforeValidator(check_given),
        AfterValidator(check_not_zero),
    ] = Field(default=None, description="A constant factor of the residual.")
    output: Literal["normalized", "factor"] = Field(
        default="normalized",
        description="What is returned: the row, or only its factor rstd, [.., 1].",
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

    replaces: Annotated[
        tuple[Annotated[str, AfterValidator(check_class_path)], ...],
        Field(strict=False),
        AfterValidator(unique),
    ] = Field(
        default=(),
        description="Classes whose instances patch(model) replaces, as "
        "package.module.Class.",
    )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The row lengths that the spec lists; empty where any will do."""
        if isinstance(self.hidden_size, int):
            return (self.hidden_size,)
        return () if self.hidden_size == "dynamic" else tuple(self.hidden_size)

    @property
    def normalized_lengths(self) -> tuple[int, ...]:
        """How many columns a statistic is taken of: a row, or a group of it."""
        return self.lengths if self.group_size is None else (self.group_size,)

    @property
    def has_weight(self) -> bool:
        return self.affine.weight != "none"

    @property
    def statistics_on_request(self) -> bool:
        """Whether the forward kernel stores the statistics only when asked to."""
        return self.save_stats == "auto" and self.backward

    @model_validator(mode="before")
    @classmethod
    def _eps_is_required(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or fields.get("eps_placement") == "none":
            return fields
        return {"eps": ABSENT, **fields}

    @model_validator(mode="after")
    def _fields_agree(self) -> Norm:
        found = list(conflicts(self))
        if found:
            raise PydanticCustomError(
                "conflicts", "fields disagree", {"conflicts": found}
            )
        return self


class SpecFile(Model):
    """A whole spec file."""

    version: Annotated[int, AfterValidator(check_version)] = Field(
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
