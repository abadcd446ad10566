"""Memory that shows misuse: NaN where nothing was written, canaries on both sides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

GUARD = 128  # elements on either side; a multiple of 16 bytes for every dtype
CANARY = 0x5A


class Guards:
    """The guard bands of every guarded allocation since a test began."""

    def __init__(self) -> None:
        self._bands: list[tuple[torch.Tensor, torch.Size]] = []

    def empty(self, size: tuple[int, ...], dtype: torch.dtype, device: Any) -> Any:
        """A contiguous tensor of NaN inside a larger storage of canaries.

        It is made by set_ rather than by a view, because autograd treats views apart.
        """
        shape = torch.Size(size)
        length = shape.numel()
        buffer = _real_empty(length + 2 * GUARD, dtype=dtype, device=device)
        buffer.view(torch.uint8).fill_(CANARY)
        inside = buffer[GUARD : GUARD + length]
        inside.fill_(float("nan") if dtype.is_floating_point else 0x5A5A)
        for band in (buffer[:GUARD], buffer[GUARD + length :]):
            self._bands.append((band.view(torch.uint8), shape))
        tensor = _real_empty(0, dtype=dtype, device=device)
        stride = _real_empty(shape, device="meta").stride()
        return tensor.set_(buffer.untyped_storage(), GUARD, shape, stride)

    def assert_intact(self) -> None:
        for band, shape in self._bands:
            touched = int((band != CANARY).sum())
            assert touched == 0, f"{touched} bytes written beside a {tuple(shape)}"


_real_empty = torch.empty


@contextlib.contextmanager
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guards]:
    """torch.empty, empty_like and new_empty of floating dtypes give guarded memory."""
    guards = Guards()

    def guarded(size: Any, dtype: Any, device: Any, real: Any) -> Any:
        kind = torch.device(device if device is not None else "cpu").type
        if not dtype.is_floating_point or kind not in ("cpu", "cuda"):
            return real()
        return guards.empty(tuple(size), dtype, device)

    def empty(*size: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
        dims = size[0] if size and not isinstance(size[0], int) else size
        chosen = dtype or torch.get_default_dtype()

        def real() -> Any:
            return _real_empty(*size, dtype=dtype, device=device, **rest)

        return real() if rest else guarded(dims, chosen, device, real)

    real_like = torch.empty_like
    real_new = torch.Tensor.new_empty

    def empty_like(
        other: torch.Tensor, *, dtype: Any = None, device: Any = None, **rest: Any
    ) -> Any:
        def real() -> Any:
            return real_like(other, dtype=dtype, device=device, **rest)

        keeps_strides = rest.get("memory_format") != torch.contiguous_format
        if keeps_strides and not other.is_contiguous():
            return real().fill_(float("nan"))
        return guarded(other.shape, dtype or other.dtype, device or other.device, real)

    def new_empty(
        self: torch.Tensor, *size: Any, dtype: Any = None, device: Any = None
    ) -> Any:
        dims = size[0] if size and not isinstance(size[0], int) else size
        return guarded(
            dims,
            dtype or self.dtype,
            device or self.device,
            lambda: real_new(self, *size, dtype=dtype, device=device),
        )

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch, "empty_like", empty_like)
        patch.setattr(torch.Tensor, "new_empty", new_empty)
        yield guards


def between_nans(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with NaN before and after, so that a stray read shows."""
    buffer = torch.full(
        (tensor.numel() + 2 * GUARD,),
        float("nan"),
        dtype=tensor.dtype,
        device=tensor.device,
    )
    inside = buffer[GUARD : GUARD + tensor.numel()].view(tensor.shape)
    return inside.copy_(tensor)
