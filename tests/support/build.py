"""From a spec to an imported module, once per content and process."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from normgen.fields import (
    Affine,
    BranchScale,
    Gate,
    Model,
    Modulation,
    Rounding,
    Statistics,
)
from normgen.render import render_body
from normgen.spec import Norm, SpecFile


@functools.cache
def _directory() -> Path:
    path = Path(tempfile.mkdtemp(prefix="normgen-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


#: Short names of fields, for tests that use them often; all others are dotted.
SHORT = {
    "weight": "affine.weight",
    "bias": "affine.bias",
    "parameters": "affine.dtype",
    "weight_offset": "affine.weight_offset",
    "offset_precision": "affine.offset_precision",
    "normalized": "rounding.normalized",
    "affine_rounding": "rounding.affine",
}
BLOCKS: dict[str, type[Model]] = {
    "affine": Affine,
    "rounding": Rounding,
    "statistics": Statistics,
    "gate": Gate,
    "modulation": Modulation,
    "branch_scale": BranchScale,
}


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Flat fields as a spec nests them: ``gate.position`` stands in the block gate.

    A field that is None is left out.
    """
    made: dict[str, Any] = {}
    for flat, value in fields.items():
        block, _, field = SHORT.get(flat, flat).rpartition(".")
        if value is not None:
            (made.setdefault(block, {}) if block else made)[field] = value
    return made


def make(**fields: Any) -> Norm:
    """A norm from flat fields: ``make(bias=True, **{"gate.position": "after"})``.

    rms_norm over rows of any length with eps 1e-5, unless said otherwise.
    """
    given = nested(fields)
    variant = given.setdefault("variant", "rms_norm")
    given = {"name": variant, "hidden_size": "dynamic"} | given
    if given.get("eps_placement") != "none":
        given.setdefault("eps", 1e-5)
    blocks = {name: BLOCKS[name](**given[name]) for name in BLOCKS if name in given}
    return Norm(**(given | blocks))


def text_of(*norms: Norm) -> str:
    return render_body(SpecFile(version=1, kernels=norms)).text


def load(text: str, name: str | None = None) -> ModuleType:
    """Imports ``text`` from a real file (Triton reads the source) as a new module."""
    if name is None:
        name = "generated_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    path = _directory() / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def build(*norms: Norm) -> ModuleType:
    """The module that the norms render to; one import per content."""
    return load(text_of(*norms))


def layer_class(module: ModuleType, norm: Norm) -> type[torch.nn.Module]:
    """The nn.Module of an entry: rms_norm -> RMSNorm, whatever the capitals."""
    wanted = norm.name.replace("_", "")
    for name, value in vars(module).items():
        is_layer = isinstance(value, type) and issubclass(value, torch.nn.Module)
        if is_layer and name.lower() == wanted:
            return value
    raise AssertionError(f"no nn.Module for {norm.name} in {sorted(vars(module))}")
