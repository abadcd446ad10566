"""The launch tables of a generated module: read, and made small for a test.

``_NAME_FORWARD`` maps a row length to the options of a launch, ``_NAME_BACKWARD`` to
(programs for each multiprocessor, options).  Where any length is taken, the keys are
powers of two, the last one for all that is longer.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from normgen.spec import Norm
from support.places import has_samples


def _table(module: ModuleType, norm: Norm, direction: str) -> dict[int, Any]:
    return getattr(module, f"_{norm.name.upper()}_{direction}")


def _entry(table: dict[int, Any], norm: Norm, length: int) -> Any:
    if norm.normalized_lengths:
        return table[norm.group_size or length]
    power = max(16, 1 << (length - 1).bit_length())
    return table[min(power, max(table))]


def _multiprocessors(module: ModuleType) -> int:
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).multi_processor_count
    return module._MULTIPROCESSOR_COUNTS[torch.device("cpu")]


def rows_beyond(module: ModuleType, norm: Norm, length: int) -> int:
    """More rows than all programs hold at once, the last program partly filled.

    Samples, heads and groups share the programs: so many rows for each.
    """
    if not norm.backward:
        options = _entry(_table(module, norm, "FORWARD"), norm, length)
        return options.get("ROWS_PER_PROGRAM", 1) + 2
    programs, options = _entry(_table(module, norm, "BACKWARD"), norm, length)
    shared = 3 if has_samples(norm) else 1  # as many samples as support.places makes
    if norm.affine.weight == "per_head":
        shared *= 3
    elif norm.group_size is not None:
        shared *= length // norm.group_size
    together = max(1, programs * _multiprocessors(module) // shared)
    return together * options.get("ROWS_PER_PROGRAM", 1) + 3


def shrink(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    norm: Norm,
    *,
    programs: int | None = None,
    **options: int,
) -> None:
    """Gives every launch these options, such as BLOCK_SIZE=16, and so many programs."""
    forward = _table(module, norm, "FORWARD")
    for length, entry in list(forward.items()):
        monkeypatch.setitem(forward, length, {**entry, **options})
    if not norm.backward:
        return
    backward = _table(module, norm, "BACKWARD")
    for length, (count, entry) in list(backward.items()):
        changed = (programs or count, {**entry, **options})
        monkeypatch.setitem(backward, length, changed)
