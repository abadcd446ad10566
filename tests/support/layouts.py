"""The same numbers in memory in many ways.

Each layout takes contiguous values [..., H] and returns a tensor of that shape that
lies otherwise; where elements share memory, the values are those of the first.
Everything around the elements is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from support.allocations import GUARD, between_nans


def _nan(values: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=values.dtype, device=values.device)


def every_other_column(values: torch.Tensor) -> torch.Tensor:
    base = _nan(values, *values.shape[:-1], 2 * values.shape[-1])
    base[..., ::2] = values
    return base[..., ::2]


def every_other_row(values: torch.Tensor) -> torch.Tensor:
    base = _nan(values, 2 * values.shape[0], *values.shape[1:])
    base[::2] = values
    return base[::2]


def transposed(values: torch.Tensor) -> torch.Tensor:
    """Columns lie a row apart: for [N, H], the transpose of [H, N]."""
    return values.transpose(0, -1).contiguous().transpose(0, -1)


def swapped(values: torch.Tensor) -> torch.Tensor:
    """Rows contiguous, leading dimensions exchanged: [B, S, H].transpose(0, 1)."""
    if values.ndim < 3:
        return between_nans(values)
    return values.transpose(0, 1).contiguous().transpose(0, 1)


def expanded_row(values: torch.Tensor) -> torch.Tensor:
    """One row for all: strides (0, 1)."""
    return values.reshape(-1, values.shape[-1])[0].clone().expand(values.shape)


def expanded_scalar(values: torch.Tensor) -> torch.Tensor:
    """One number for all: strides (0, 0), as autograd passes for y.sum()."""
    return values.reshape(-1)[0].clone().expand(values.shape)


def expanded_columns(values: torch.Tensor) -> torch.Tensor:
    """One number a row: the last stride 0."""
    return values[..., :1].clone().expand(values.shape)


def offset_by_1(values: torch.Tensor) -> torch.Tensor:
    """buf[1:]: no address is a multiple of 16 bytes."""
    return _offset(values, 1)


def offset_by_3(values: torch.Tensor) -> torch.Tensor:
    return _offset(values, 3)


def _offset(values: torch.Tensor, by: int) -> torch.Tensor:
    start = GUARD + by
    buffer = _nan(values, values.numel() + 2 * GUARD + by)
    view = buffer[start : start + values.numel()].view(values.shape)
    view.copy_(values)
    return view


def packed(values: torch.Tensor) -> torch.Tensor:
    """The middle third of wider rows, as q, k or v of one projection."""
    length = values.shape[-1]
    base = _nan(values, *values.shape[:-1], 3 * length)
    base[..., length : 2 * length] = values
    return base[..., length : 2 * length]


def odd_rows(values: torch.Tensor) -> torch.Tensor:
    """Rows an odd number of elements apart: the first is aligned, others are not."""
    length = values.shape[-1]
    base = _nan(values, *values.shape[:-1], length + 1)
    base[..., :length] = values
    return base[..., :length]


def overlapping(values: torch.Tensor) -> torch.Tensor:
    """Each row begins one element after the one before it: strides (1, 1)."""
    rows, length = values.reshape(-1, values.shape[-1]).shape
    flat = values.reshape(-1)[: rows + length].clone()
    if values.ndim != 2:
        return between_nans(values)
    return flat.as_strided((rows, length), (1, 1))


ROW_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    f.__name__: f
    for f in (
        every_other_column,
        every_other_row,
        transposed,
        swapped,
        expanded_row,
        expanded_scalar,
        expanded_columns,
        offset_by_1,
        offset_by_3,
        packed,
        odd_rows,
        overlapping,
    )
}

COLUMN_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every_other": every_other_column,
    "offset_by_1": offset_by_1,
    "offset_by_3": offset_by_3,
    "expanded": expanded_scalar,
    "column_of_matrix": lambda v: torch.stack([v, -v, v], dim=1)[:, 0],
}
