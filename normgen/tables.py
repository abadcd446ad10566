"""Launch tables as they stand in a generated file, and how its code reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from normgen import launch
from normgen.launch import FEW_ROWS, Direction, Launch
from normgen.plan import Branch, NormPlan


@dataclass(frozen=True)
class Section:
    """The entries of one strategy, and the reason for them."""

    reason: str
    entries: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A dict from row length to launch constants."""

    legend: str
    name: str
    sections: tuple[Section, ...]


def tables(plan: NormPlan) -> tuple[Table, ...]:
    """The launch tables of a norm."""
    asked, made = plan.norm.strategy, []

    def why(direction: Direction, strategy: str) -> str:
        return launch.reason(direction, strategy, asked)

    def why_few(direction: Direction, strategy: str) -> str:
        return launch.REASON_OF_FEW_ROWS

    name = _name(plan, "FORWARD")
    made.append(_table(plan, "forward", name, launch.launch, _options, why))
    if not plan.norm.batch_invariant:
        name = _name(plan, "FORWARD_FEW_ROWS")
        made.append(_table(plan, "forward", name, launch.launch_few, _options, why_few))
    if plan.norm.backward:
        name = _name(plan, "BACKWARD")
        made.append(_table(plan, "backward", name, launch.launch, _persistent, why))
    return tuple(made)


def lookup(plan: NormPlan, direction: Direction) -> tuple[str, ...]:
    """The lines that find the constants of ``hidden_size``."""
    name, target = _name(plan, direction.upper()), "options"
    if direction == "backward":
        target = "per_multiprocessor, options"
    lines, key = [], "hidden_size"
    if plan.norm.group_size is not None:
        key = str(plan.norm.group_size)
    if not plan.norm.lengths:
        longest = plan.branches(direction)[-1].lengths[-1]
        power = f"max({launch.MIN_BLOCK}, triton.next_power_of_2(hidden_size))"
        lines.append(f"length = min({power}, {longest})")
        key = "length"
    if direction == "forward" and not plan.norm.batch_invariant:
        rows = "n_rows * n_samples" if plan.grid.channel else "n_rows"
        lines += [
            f"table = {name}",
            f"if {rows} <= {FEW_ROWS}:",
            f"    table = {name}_FEW_ROWS",
        ]
        name = "table"
    return (*lines, f"{target} = {name}[{key}]")


def tiles(branches: tuple[Branch, ...]) -> str:
    """How many programs hold all rows, one tile each."""
    if len({branch.strategy.tiles for branch in branches}) == 1:
        return branches[0].strategy.tiles
    return 'triton.cdiv(n_rows, options.get("ROWS_PER_PROGRAM", 1))'


def _name(plan: NormPlan, suffix: str) -> str:
    return f"_{plan.name.upper()}_{suffix}"


def _table(
    plan: NormPlan,
    direction: Direction,
    name: str,
    constants: Callable[[int, Direction, str], Launch],
    entry: Callable[[Launch], str],
    why: Callable[[Direction, str], str],
) -> Table:
    entries = "launch options"
    if direction == "backward":
        entries = "(programs a multiprocessor, launch options)"
    key = {"row": "row length", "group": "group size", "head": "head size"}[
        plan.grid.unit
    ]
    key = key.capitalize() if plan.norm.lengths else f"Up to this {key}, else the last"
    return Table(
        f"{key}: {entries}.",
        name,
        tuple(
            Section(
                why(direction, branch.strategy.name),
                tuple(
                    f"{n}: {entry(constants(n, direction, branch.strategy.name))},"
                    for n in branch.lengths
                ),
            )
            for branch in plan.branches(direction)
        ),
    )


def _options(chosen: Launch) -> str:
    pairs = (f'"{name}": {value}' for name, value in chosen.options.items())
    return "{" + ", ".join(pairs) + "}"


def _persistent(chosen: Launch) -> str:
    return f"({chosen.programs}, {_options(chosen)})"
