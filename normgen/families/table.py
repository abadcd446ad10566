"""The table as frozen data: kinds of norms, and the norms of each model type."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: The release whose model code and config defaults the table states.
TRANSFORMERS = "5.24.0"
KINDS = "kinds.yaml"
ALIASES = "aliases.yaml"


class _Data(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", populate_by_name=True
    )


class Kind(_Data):
    """What one family of norm classes computes."""

    source: str = Field(description="The class that this was read from.")
    fields: dict[str, Any] = Field(description="Spec fields, the variant among them.")
    note: str = Field(description="The same for people: where it casts.")


class Row(_Data):
    """One norm of a model."""

    name: str
    kind: str
    path: str | None = Field(
        default=None,
        alias="class",
        description="A class of the family's modeling file, or a dotted path.",
    )
    function: str | None = Field(
        default=None, description="A function that no module stands for."
    )
    size: str = Field(description="Row length: an expression of config keys.")
    stages: str | None = Field(
        default=None,
        description="A list in the config: size is taken for each index, as stage.",
    )
    omit: int = Field(default=0, description="How many last stages have no such norm.")
    eps: str | float | None = Field(
        default=None, description="A config key, or the number in the model's code."
    )
    group_size: str | None = None
    modules: tuple[str, ...] = Field(
        default=(), strict=False, description="Ends of the names of its modules."
    )
    when: str | None = Field(default=None, description="A condition on config keys.")
    residual: Literal["pre_add", "post_add"] | None = Field(
        default=None, description="The add that the model has beside it."
    )
    note: str | None = None


class Part(_Data):
    """A nested config."""

    model_type: str = Field(description="Its type, or that where it names none.")
    fixed: bool = Field(
        default=False, description="The type holds whatever the nested config says."
    )
    optional: bool = Field(default=False, description="The model may lack it.")
    defaults: dict[str, Any] = Field(
        default={}, description="What it is where the config lacks it."
    )


class Family(_Data):
    """The norms of one model type."""

    module: str = Field(default="", description="transformers.models.<module>.")
    norms: tuple[Row, ...] = Field(default=(), strict=False)
    defaults: dict[str, Any] = Field(
        default={}, description="What the config class takes where a key is absent."
    )
    rules: dict[str, str] = Field(
        default={}, description="The same as expressions, for absent and null keys."
    )
    aliases: dict[str, list[str]] = Field(
        default={}, description="Second names that the config class takes for a key."
    )
    parts: dict[str, Part] = Field(default={}, description="The nested configs.")
    flat: str | None = Field(
        default=None, description="The nested config whose keys may stand at the top."
    )
    left_out: dict[str, str] = Field(
        default={}, description="Norms that no spec can say, and why."
    )

    @model_validator(mode="after")
    def _has_norms(self) -> Family:
        if not (self.norms or self.parts or self.left_out):
            raise ValueError("neither norms nor a reason why there are none")
        return self

    def source(self, row: Row) -> str | None:
        """The dotted path of the class or function that makes a norm."""
        name = row.path or row.function
        if name is None or "." in name:
            return name
        return f"transformers.models.{self.module}.modeling_{self.module}.{name}"


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every kind of norm by its name."""
    return {name: Kind.model_validate(data) for name, data in _read(KINDS).items()}


@functools.cache
def families() -> dict[str, Family]:
    """Every model type that normgen knows, in alphabetical order."""
    found: dict[str, Family] = {}
    aliases = _read(ALIASES)
    for file in resources.files(__package__).iterdir():
        if file.name.endswith(".yaml") and file.name not in (KINDS, ALIASES):
            for name, data in _read(file.name).items():
                if name in found:
                    raise ValueError(f"{file.name}: {name} is in another file too")
                named = {"aliases": aliases.get(name, {})}
                data = {"module": name.replace("-", "_"), **named, **data}
                found[name] = Family.model_validate(data)
    return dict(sorted(found.items()))


def _read(name: str) -> dict[str, Any]:
    from normgen.yaml_reader import read

    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    document = read(text, f"families/{name}")
    if document.problems or not isinstance(document.data, dict):
        raise ValueError("; ".join(map(str, document.problems)) or f"{name} is empty")
    return document.data
