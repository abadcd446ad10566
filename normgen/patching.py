"""What ``patch`` goes by: the classes that norms stand for, and when one fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from normgen import interface
from normgen.layout import INDENT, WIDTH, laid_out
from normgen.naming import ARGUMENTS
from normgen.plan import NormPlan
from normgen.spaces import GROUP, HEAD

#: what a module with ``patch`` offers beside its norms
PUBLIC = ("PatchReport", "patch", "unpatch")


@dataclass(frozen=True)
class StandIn:
    """A function that makes a norm to stand for another, as finished lines."""

    name: str
    function: str
    hidden_size: str
    checks: tuple[str, ...]
    made: tuple[str, ...]
    taken_over: str


@dataclass(frozen=True)
class Replaced:
    """A class that is replaced: a key of the table, and what may stand for it."""

    key: str
    stand_ins: tuple[StandIn, ...]


@dataclass(frozen=True)
class Patching:
    """All that the template of ``patch`` may ask for."""

    stand_ins: tuple[StandIn, ...]
    classes: tuple[Replaced, ...]


def patching(plans: Sequence[NormPlan]) -> Patching | None:
    """The facts of ``patch``; None where no norm stands for another."""
    made = [(p.norm.replaces, _stand_in(p)) for p in plans if p.norm.replaces]
    if not made:
        return None
    paths = dict.fromkeys(path for replaces, _ in made for path in replaces)
    return Patching(
        stand_ins=tuple(one for _, one in made),
        classes=tuple(
            Replaced(
                key=_key(path),
                stand_ins=tuple(one for replaces, one in made if path in replaces),
            )
            for path in paths
        ),
    )


def _stand_in(plan: NormPlan) -> StandIn:
    sizes = ["hidden_size"]
    if HEAD in plan.graph.tensors.values():
        sizes.insert(0, f"norm.{ARGUMENTS[plan.learned[0]]}.shape[0]")
    eps = ["_eps_of(norm)"] if "eps" in plan.arguments else []
    arguments = [*sizes, *eps, 'device="meta"']
    return StandIn(
        name=plan.name,
        function=f"_{plan.name}_for",
        hidden_size=_hidden_size(plan),
        checks=_checks(plan),
        made=laid_out(f"made = {plan.class_name}(", arguments, ")", 4),
        taken_over=f"_take_over({', '.join(['made', 'norm', *_dtypes(plan)])})",
    )


def _checks(plan: NormPlan) -> tuple[str, ...]:
    """What must agree with the spec beside the parameters."""
    lines, group = [], plan.norm.group_size
    if plan.norm.eps_placement == "none":
        lines.append("_check_no_eps_of(norm)")
    elif "eps" not in plan.arguments:
        lines.append(f"_check_eps_of(norm, {plan.norm.eps!r})")
    if plan.norm.affine.weight != "per_group":
        groups = () if group is None else (str(group),)
        lines.append(f"_check_groups_of({', '.join(('norm', 'hidden_size', *groups))})")
    settings = [f"{name}={value}" for name, value in _settings(plan).items()]
    if settings:
        lines += laid_out("_check_settings(", ["norm", *settings], ")", 4)
    return tuple(lines)


def _hidden_size(plan: NormPlan) -> str:
    """How the row length of another norm is told: by a parameter that spans a row."""
    for t in plan.learned:
        if plan.graph.tensors[t] != GROUP:
            return f'_columns_of(norm, "{ARGUMENTS[t]}")'
    only = plan.norm.lengths if len(plan.norm.lengths) == 1 else ()
    return f"_hidden_size_of({', '.join(['norm', *map(str, only)])})"


def _settings(plan: NormPlan) -> dict[str, str]:
    """Attributes of other norms that must agree with the spec, where they are set."""
    norm, settings = plan.norm, {}
    if norm.variant == "layer_norm":
        order = "first" if norm.axis == "channel" else "last"
        settings["data_format"] = f'"channels_{order}"'
    if norm.gate is not None:
        settings["norm_before_gate"] = str(norm.gate.position == "after")
        settings["activation"] = f'"{norm.gate.activation}"'
    if norm.max_norm is not None:
        settings["max_norm"] = repr(norm.max_norm)
    if norm.gate is None and norm.post_activation != "none":
        settings["activation"] = f'"{norm.post_activation}"'
    return settings


def _dtypes(plan: NormPlan) -> list[str]:
    """The dtypes that the parameters may have, where there are any."""
    if not plan.learned:
        return []
    dtype = plan.norm.affine.dtype
    named = {"any": "_FLOATS", "same": interface.x_dtypes(plan)}
    return [named.get(dtype, f"(torch.{dtype},)")]


def _key(path: str) -> str:
    """The path of a class as a key of the table: in pieces where it is long."""
    if len(path) <= WIDTH - len(f'{INDENT}"": {{'):
        return f'"{path}"'
    pieces, room = [""], WIDTH - len(f'{INDENT}{INDENT}""')
    for part in re.findall(rf"[^.]{{1,{room - 1}}}\.?", path):
        if len(pieces[-1] + part) > room:
            pieces.append("")
        pieces[-1] += part
    lines = ["(", *(f'{INDENT}"{piece}"' for piece in pieces), ")"]
    return f"\n{INDENT}".join(lines)
