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


def unpacked(
    targets: Sequence[str], call: str, items: Sequence[str], indent: int = 0
) -> tuple[str, ...]:
    """``targets = call(items)``, at ``indent``; the call in parentheses of its own, or
    each target on a line, where they are too many for the line."""
    joined, room = ", ".join(targets), WIDTH - indent
    if len(f"{joined} = {call}(") <= room or len(targets) == 1:
        return laid_out(f"{joined} = {call}(", items, ")", indent)
    if len(f"{joined} = (") <= room:
        inner = laid_out(f"{call}(", items, ")", indent + len(INDENT))
        return (f"{joined} = (", *(f"{INDENT}{line}" for line in inner), ")")
    first, *rest = laid_out(f") = {call}(", items, ")", indent)
    return ("(", *(f"{INDENT}{target}," for target in targets), first, *rest)
