"""What a call launches, recorded without running it, as input for the compiler.

The launches are those of the public function: kernel, types of its arguments,
constexprs and options are what a user's call would compile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from normgen.spec import Norm
from support.checks import run, upstream_for
from support.inputs import Inputs
from support.oracle import Oracle

INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def _kernel_class() -> type:
    if INTERPRETED:
        from triton.runtime.interpreter import InterpretedFunction

        return InterpretedFunction
    return triton.runtime.JITFunction


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Collects the launches made inside; nothing is run."""
    launches: list[dict[str, Any]] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append({"grid": grid, **_describe(self, args, kwargs)})

    with monkeypatch.context() as patch:
        patch.setattr(_kernel_class(), "run", record)
        yield launches


def _describe(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    annotations = kernel.fn.__annotations__
    names = kernel.arg_names
    given = dict(zip(names, args, strict=False))
    given |= {k: v for k, v in kwargs.items() if k in names}
    assert list(given) and set(given) == set(names), (names, list(given))
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    for name in names:
        value = given[name]
        if annotations.get(name) in (tl.constexpr, "tl.constexpr") or value is None:
            signature[name] = "constexpr"
            constexprs[name] = str(value) if isinstance(value, tl.dtype) else value
        elif isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            wide = annotations.get(name) in (tl.int64, "tl.int64")
            signature[name] = "i64" if wide else "i32"
    return {
        "kernel": kernel.fn.__name__,
        "signature": signature,
        "constexprs": constexprs,
        "options": {k: v for k, v in kwargs.items() if k not in names},
    }


def launches_of(
    module: Any, norm: Norm, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The launches of a forward and, where the spec has one, a backward."""
    upstream = upstream_for(norm, Oracle(norm, inputs)) if norm.backward else None
    with recorded(monkeypatch) as launches:
        run(module, norm, inputs, upstream)
    return launches
