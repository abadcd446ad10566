"""Brackets as ``ruff format`` lays them out: one line, else indented, else a list."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 88
INDENT = "    "


def laid_out(
    before: str, items: Sequence[str], after: str, indent: int = 0
) -> tuple[str, ...]:
    """``before``, which ends in a bracket, ``items`` and ``after``, at ``indent``.

    On one line where that fits; else the items on a line of their own; else each on its
    own, with a comma after the last.  The one parameter of a function counts as a list.
    """
    joined = ", ".join(items)
    room = WIDTH - indent
    if len(before) + len(joined) + len(after) <= room:
        return (f"{before}{joined}{after}",)
    is_list = len(items) == 1 and before.startswith("def ")
    if len(INDENT) + len(joined) <= room and not is_list:
        return (before, f"{INDENT}{joined}", after)
    return (before, *(f"{INDENT}{item}," for item in items), after)
