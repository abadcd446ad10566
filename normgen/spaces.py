"""Index spaces: for which rows and columns a tensor has values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Space:
    """How a tensor lies beside the rows.

    ``per_row`` tensors have values for every row, and are loaded and stored with it.
    The others are loaded once a program, and their gradients are summed over rows.
    ``shape`` is that of an argument beside x [..., H]; ``is_strided`` tells that its
    own rows may be any distance apart.
    """

    name: str
    shape: str
    per_row: bool = False
    is_strided: bool = False


ELEMENT = Space("element", "[..., H]", per_row=True, is_strided=True)
ROW = Space("row", "[..., 1]", per_row=True)
COLUMN = Space("column", "[H]")
HEAD = Space("head", "[heads, H]")
GROUP = Space("group", "[group_size]")
SAMPLE = Space("sample", "[samples, H]", is_strided=True)
