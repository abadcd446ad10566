"""Conformance needs the model libraries; without them only its table is tested."""

from __future__ import annotations

from importlib.util import find_spec

LIBRARIES = ("transformers", "diffusers", "timm")

collect_ignore = (
    []
    if all(find_spec(name) for name in LIBRARIES)
    else ["test_reference.py", "test_kernels.py"]
)
