"""Classes and functions of the model libraries by import path."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@functools.cache
def find(path: str) -> Any:
    """``package.module.name``, or a method as ``package.module.Class.method``."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:end])
        try:
            module = _import(module_name)
        except ModuleNotFoundError as error:
            if error.name and module_name.startswith(error.name):
                continue
            raise
        return functools.reduce(getattr, parts[end:], module)
    raise ImportError(path)


def _import(name: str) -> ModuleType:
    if name.split(".")[0] == "timm":
        return _timm(name)
    return importlib.import_module(name)


@functools.cache
def _timm(name: str) -> ModuleType:
    """A module of timm.layers; timm's own import needs torchvision, its norms do not.

    The packages are made but not run, so that relative imports find their way.  What
    is taken from torchvision is one class, which no row-wise norm uses.
    """
    with _forgotten("timm", "torchvision"):
        for package in ("timm", "timm.layers"):
            spec = importlib.util.find_spec(package)
            if spec is None:
                raise ModuleNotFoundError(f"no module named {package}", name=package)
            sys.modules[package] = importlib.util.module_from_spec(spec)
        for package in ("torchvision", "torchvision.ops", "torchvision.ops.misc"):
            sys.modules[package] = ModuleType(package)
        sys.modules["torchvision.ops.misc"].FrozenBatchNorm2d = object
        return importlib.import_module(name)


@contextmanager
def _forgotten(*packages: str) -> Iterator[None]:
    """Afterwards the packages are as if they had never been imported."""
    try:
        yield
    finally:
        for name in list(sys.modules):
            if name.split(".")[0] in packages:
                del sys.modules[name]
