"""The numerics contract in eager torch: the lines of the emitted reference.

The same steps as the kernels', in the same order and with the same names.  Where the
kernels must round by a cast, torch's own type promotion does it here, as in model code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from normgen import dtypes
from normgen.dtypes import FLOAT32, Dtype
from normgen.expr import is_name, is_primary, names, substitute
from normgen.graph import Graph, Node
from normgen.naming import ARGUMENTS, RESULTS
from normgen.notation import in_torch
from normgen.spaces import ELEMENT, GROUP, SAMPLE
from normgen.spec import Norm
from normgen.statistics import Reduction, Value
from normgen.steps import WIDE


def reference_lines(norm: Norm, graph: Graph) -> list[str]:
    """The body of the reference function."""
    writer = _Reference(norm, graph)
    writer.shape()
    for node in graph.prologue:
        writer.step(node)
        writer.keep(node)
    writer.statistic()
    for node in graph.epilogue:
        writer.step(node)
    writer.results()
    return _without_detour(_used(writer.lines))


@dataclass
class _Reference:
    norm: Norm
    graph: Graph
    lines: list[str] = field(
        default_factory=lambda: [
            "dtype = x.dtype",
            "compute = torch.promote_types(dtype, torch.float32)",
        ]
    )
    known: dict[str, Dtype] = field(default_factory=dict)

    def shape(self) -> None:
        """Makes tensors broadcast against rows along the last axis."""
        for t, space in self.graph.tensors.items():
            name = ARGUMENTS[t]
            if space == SAMPLE:
                size = "x.shape[1]" if self.norm.axis == "channel" else "x.shape[-1]"
                shape = f"len(x), *[1] * (x.dim() - 2), {size}"
                self.lines.append(f"{name} = {name}.reshape({shape})")
            if space == GROUP:
                count = f"x.shape[-1] // {self.norm.group_size}"
                self.lines.append(f"{name} = {name}.repeat({count})")
        if self.norm.axis == "channel":
            elements = [t for t, s in self.graph.tensors.items() if s == ELEMENT]
            for name in (ARGUMENTS[t] for t in elements):
                self.lines.append(f"{name} = {name}.movedim(1, -1)")

    def step(self, node: Node) -> None:
        """A step: the helper values that torch needs, and its value."""
        step, source = node.step, self._named(node.source)
        value = in_torch(step.value)
        for helper in step.helpers:
            if helper.name in names(value):
                operands = self._operands(helper.promotes == WIDE)
                text = substitute(in_torch(helper.value), operands)
                self.lines.append(f"{helper.name} = {text}")
        known = self._operands(step.promotes == WIDE)
        if step.promotes == WIDE and self._dtype(node.source) != FLOAT32:
            source = f"{source}.to(compute)"
        numerator = self._named(self.graph.numerator)
        known |= {"x": source, "numerator": numerator, "root_n": self._root(source)}
        text = substitute(value, known)
        if step.rounds_to is not None:
            text = text if is_primary(text) else f"({text})"
            text += f".to({self._torch(node.dtype)})"
        self.lines.append(f"{node.out} = {text}")
        self.known[node.out] = node.dtype

    def keep(self, node: Node) -> None:
        """A returned value, as it is stored."""
        if not node.step.returned:
            return
        name, stored = RESULTS[node.out], self.graph.dtypes[node.out]
        cast = "" if node.dtype == stored else f".to({self._torch(stored)})"
        self.lines.append(f"{name} = {node.out}{cast}")

    def statistic(self) -> None:
        """From the rows to x_hat, in ``compute`` or in the dtype of x."""
        graph, source = self.graph, self._named(self.graph.norm.source)
        in_io = self.norm.statistics.precision != "float32"
        wide = source
        if in_io and any(mean.wide for mean in graph.statistic.means):
            wide = "wide"
            self.lines.append(f"wide = {source}.to(compute)")
        elif not in_io and self._dtype(graph.norm.source) != FLOAT32:
            self.lines.append(f"{source} = {source}.to(compute)")
        size = self.norm.group_size
        if size is not None:
            for name in dict.fromkeys((wide, source)):  # x itself as the last one
                shape = f"-1, (x.shape[-1] // {size}, {size})"
                self.lines.append(f"{name} = {name}.unflatten({shape})")
        unrounded = self._parts(source, wide)
        value = self.graph.norm.step.value
        if value != self.graph.statistic.factor:
            text = in_torch(substitute(value, self._known(source)))
            if in_io and names(value) & unrounded:
                text = f"({text}).to(dtype)"
            if size is not None:
                text = f"{text if is_primary(text) else f'({text})'}.flatten(-2)"
            self.lines.append(f"x_hat = {text}")
        self.known["x_hat"] = graph.norm.dtype

    def _parts(self, source: str, wide: str) -> set[str]:
        """The parts in order; those that torch leaves wider than the dtype of x."""
        row_is_wide = self._dtype(self.graph.norm.source) != self.graph.dtypes["x"]
        unrounded = {"x"} if row_is_wide else set()
        same: dict[str, str] = {}
        for part in self.graph.statistic.parts:
            if isinstance(part, Reduction):
                row = wide if part.wide else source
                self.lines.append(f"{part.name} = {self._reduction(part, row)}")
                in_compute = part.wide or self._in_float32 or part.over == "N - 1"
                if in_compute or names(part.term) & unrounded:
                    unrounded.add(part.name)
            elif is_name(part.formula) and part.formula not in unrounded:
                same[part.name] = part.formula  # torch has rounded it already
            else:
                self.lines.append(self._value(part, source, wide, unrounded, same))
        return unrounded

    @property
    def _in_float32(self) -> bool:
        return self.norm.statistics.precision == "float32"

    def _value(
        self,
        value: Value,
        source: str,
        wide: str,
        unrounded: set[str],
        same: Mapping[str, str],
    ) -> str:
        formula = substitute(value.formula, same)
        text = in_torch(
            substitute(formula, self._known(source if value.rounds else wide))
        )
        if not value.rounds:
            unrounded.add(value.name)
        elif names(formula) & unrounded:
            text = f"{text}.to(dtype)" if is_primary(text) else f"({text}).to(dtype)"
        return f"{value.name} = {text}"

    def _reduction(self, mean: Reduction, row: str) -> str:
        known = self._known(row)
        if mean.columns is not None:
            known["x"] = f"{row}[..., :{mean.columns}]"
        term = in_torch(substitute(mean.term, known))
        if is_name(mean.term) and mean.term != "x" and mean.columns is not None:
            term = f"{mean.term}[..., :{mean.columns}]"
        term = term if is_primary(term) else f"({term})"
        if mean.over == "":
            return f"{term}.sum(-1, keepdim=True)"
        if mean.over == "N - 1":
            # torch would round the sum, too, in the dtype of x
            wide = "" if mean.wide or self._in_float32 else ", dtype=compute"
            return f"{term}.sum(-1, keepdim=True{wide}) / ({row}.shape[-1] - 1)"
        return f"{term}.mean(-1, keepdim=True)"

    def results(self) -> None:
        """The last lines: results in their dtypes, or copied over an input."""
        graph, returned = self.graph, {t: RESULTS[t] for t in self.graph.results}
        for t, value in graph.results.items():
            if t in [node.out for node in graph.prologue]:
                continue
            value = graph.statistic.factor if t == "factor" else value
            dtype = FLOAT32 if t == "factor" else self._dtype(value)
            cast = dtype != graph.dtypes[t]
            if cast:
                self.lines.append(f"{t} = {value}.to({self._torch(graph.dtypes[t])})")
            returned[t] = t if cast else value
        if self.norm.axis == "channel":
            for name in returned.values():
                self.lines.append(f"{name} = {name}.movedim(-1, 1).contiguous()")
        for t, owner in graph.overwrites.items():
            self.lines.append(f"{ARGUMENTS[owner]}.copy_({returned[t]})")
            returned[t] = ARGUMENTS[owner]
        statistics = graph.statistic.saved if self.norm.save_stats == "always" else ()
        self.lines += map(self._kept, statistics)
        self.lines.append(f"return {', '.join([*returned.values(), *statistics])}")

    def _root(self, row: str) -> str:
        """The root of the row length that a statistic is taken of."""
        size = self.norm.group_size
        return f"{row}.shape[-1] ** 0.5" if size is None else f"{size} ** 0.5"

    def _kept(self, statistic: str) -> str:
        """The line that makes a statistic ready to be returned, in float32."""
        if statistic == "mean" and self.norm.statistics.precision == "io_stepwise":
            made = f"{self._named(self.graph.norm.source)}.to(compute).mean(-1)"
        elif self.norm.rounding.rstd == "io" or not self._in_float32:
            made = f"{statistic}.squeeze(-1).to(compute)"
        else:
            made = f"{statistic}.squeeze(-1)"
        return f"{statistic} = {made}.detach()"

    def _known(self, source: str) -> dict[str, str]:
        return {"x": source, "eps": self.graph.eps}

    def _named(self, value: str) -> str:
        return ARGUMENTS.get(value, value)

    def _operands(self, wide: bool) -> dict[str, str]:
        cast = ".to(compute)" if wide else ""
        return {t: f"{ARGUMENTS[t]}{cast}" for t in self.graph.tensors if t != "x"}

    def _dtype(self, value: str) -> Dtype:
        return self.known.get(value) or self.graph.dtypes[value]

    def _torch(self, dtype: Dtype) -> str:
        if dtype == self.graph.dtypes["x"]:
            return "dtype"
        atoms = {name: f"{host}.dtype" for name, host in ARGUMENTS.items()}
        return dtypes.in_torch(dtype, {**atoms, "x": "dtype"})


def _used(lines: list[str]) -> list[str]:
    """The lines but those that make a value which none after them reads."""
    kept: list[str] = []
    read: set[str] = set()
    for line in reversed(lines):
        statement = ast.parse(line.replace("return ", "", 1)).body[0]
        made = {n.id for n in ast.walk(statement) if _is_target(n)}
        if made <= read:
            kept.append(line)
            read |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
    return kept[::-1]


def _is_target(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _without_detour(lines: Iterable[str]) -> list[str]:
    """``return value`` where the last two lines are ``y = value`` and ``return y``."""
    *most, made, returned = lines
    name = returned.removeprefix("return ")
    if not made.startswith(f"{name} = "):
        return [*most, made, returned]
    return [*most, f"return {made.removeprefix(f'{name} = ')}"]
