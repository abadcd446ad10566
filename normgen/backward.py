"""The facts of a backward kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from normgen.adjoint import Adjoint
from normgen.expr import names
from normgen.graph import Graph, Line
from normgen.grid import Grid, Pointer
from normgen.kernels import Kernel, Mean, Slicer, Sweep, arguments
from normgen.notation import FUNCTIONS, in_triton
from normgen.spaces import ELEMENT, ROW, SAMPLE, Space
from normgen.strategies import Strategy


@dataclass(frozen=True)
class Accumulation:
    """A gradient that is summed over rows: ``gradient += formula``, row after row.

    ``stride`` is how far apart the sums of two programs are.
    """

    gradient: str
    formula: str
    stride: str
    space: Space

    @property
    def line(self) -> str:
        """The statement that adds one row."""
        return f"{self.gradient} += {self.formula}"


@dataclass(frozen=True)
class BackwardKernel(Kernel):
    """What the backward templates place.

    ``saved`` are loaded once a row, each with the cast that it needs.  A row in
    registers is replayed and differentiated up to the row means (``early``), and from
    them on (``late``), by what is made ``once`` for all rows; sums gain from it where
    their lines are made.  A row in chunks goes through ``first`` for the means, if
    there are any, and ``second`` for the gradients.
    """

    saved: tuple[tuple[str, str], ...]
    gradients: tuple[str, ...]
    accumulations: tuple[Accumulation, ...]
    means: tuple[Mean, ...]
    once: tuple[str, ...]
    early: tuple[str, ...]
    early_sums: tuple[Accumulation, ...]
    late: tuple[str, ...]
    late_sums: tuple[Accumulation, ...]
    first: tuple[Sweep, ...]
    second: Sweep
    replayed: tuple[Line, ...]

    @property
    def read_per_row(self) -> tuple[str, ...]:
        return tuple(t for t, *_ in self.saved)


def backward_kernel(
    name: str, graph: Graph, adjoint: Adjoint, grid: Grid, strategy: Strategy
) -> BackwardKernel:
    """The backward kernel of a norm by ``strategy``."""
    incoming = tuple(t for t, space in adjoint.tensors.items() if space == ROW)
    memory = {*graph.replayed, *graph.statistic.saved, *incoming}
    means = {mean.name for mean in adjoint.means}
    terms = set[str]().union(*(names(mean.term) for mean in adjoint.means))
    pure = [line for line in adjoint.lines if not line.accumulates]
    order = list(adjoint.gradients)
    adding = [line for line in adjoint.lines if line.accumulates]
    adding.sort(key=lambda line: order.index(line.target))
    added = set[str]().union(*(line.uses for line in adding))
    elements = tuple(g for g, space in adjoint.gradients.items() if space == ELEMENT)
    every = {
        **adjoint.tensors,
        **graph.tensors,
        **dict.fromkeys(graph.replayed, ELEMENT),
    }
    spaces = {t: space for t, space in every.items() if space != ROW}

    lines = (*graph.lines, *pure)
    plain = Slicer(lines, spaces, grid, graph.dtypes, ())
    read = {*elements, *added, *terms}
    whole = plain.cut(read, memory)
    inputs = plain.loads(whole, read, per_row=True)
    columns = plain.loads(whole, read, per_row=False)
    slicer = Slicer(lines, spaces, grid, graph.dtypes, (*inputs, *columns))
    early, late = _about(whole, means)
    once, early = _same_for_all_rows(early, columns)
    first = slicer.sweep(terms, memory, adjoint.means)
    second = slicer.sweep({*elements, *added}, {*memory, *means})
    read_by_row = set(read).union(*(line.uses for line in whole))
    saved = tuple(t for t in (*incoming, *graph.statistic.saved) if t in read_by_row)
    eps = {"eps"} & set[str]().union(*(line.uses for line in whole))
    sums = tuple(
        Accumulation(
            line.target,
            in_triton(line.formula),
            grid.partial_rows(adjoint.gradients[line.target]),
            adjoint.gradients[line.target],
        )
        for line in adding
    )
    known_late = means | {line.target for line in late}
    late_sums = tuple(s for s in sums if names(s.formula) & known_late)
    strided = tuple(t for t in (*inputs, *columns) if spaces[t].is_strided)
    sums_kinds = {SAMPLE: "sample_partial"}
    return BackwardKernel(
        name=name,
        how=strategy.told("backward", grid.words),
        grid=grid,
        prelude=grid.prelude(
            {
                **dict.fromkeys(inputs, Pointer(grid.input_kind)),
                **{t: Pointer(grid.kind(spaces[t])) for t in columns},
                **dict.fromkeys(saved, Pointer("statistic")),
                **dict.fromkeys(elements, Pointer("output", optional=True)),
                **{
                    f"{s.gradient}_partial": Pointer(
                        sums_kinds.get(s.space, "partial"), optional=True
                    )
                    for s in sums
                },
            }
        ),
        arguments=arguments(
            tensors={
                **{t: grid.row_doc(t) for t in inputs},
                **{t: grid.column_doc(spaces[t], t) for t in columns},
                **dict.fromkeys(saved, grid.statistic_doc),
                **dict.fromkeys(incoming, grid.statistic_doc.removesuffix(", float32")),
                **dict.fromkeys(elements, grid.output_doc + ", or None"),
                **{
                    f"{s.gradient}_partial": grid.partial_doc(s.space) + ", or None"
                    for s in sums
                },
            },
            strided=grid.given_strides(strided, spaces),
            sizes=(*strategy.sizes["backward"], *grid.sizes, *eps),
            roundings=slicer.roundings,
            constants=strategy.constants,
            grid=grid,
        ),
        roundings=slicer.roundings,
        elements=inputs,
        columns=columns,
        strided=strided,
        saved=tuple((t, ".to(tl.float32)" if t in incoming else "") for t in saved),
        gradients=elements,
        accumulations=sums,
        means=tuple(map(slicer.mean, adjoint.means)),
        once=slicer.texts(once),
        early=slicer.texts(early),
        early_sums=tuple(s for s in sums if s not in late_sums),
        late=slicer.texts(late),
        late_sums=late_sums,
        first=(first,) if adjoint.means else (),
        second=second,
        replayed=tuple(line for line in whole if line in graph.lines),
    )


def _same_for_all_rows(
    lines: Iterable[Line], columns: Iterable[str]
) -> tuple[list[Line], list[Line]]:
    """The lines that read only what is loaded once, and the others."""
    once, others, known = [], [], {*columns, *FUNCTIONS}
    for line in lines:
        if line.uses <= known:
            once.append(line)
            known.add(line.target)
        else:
            others.append(line)
    return once, others


def _about(lines: Iterable[Line], means: set[str]) -> tuple[list[Line], list[Line]]:
    """The lines that need none of the row means, and those that do."""
    early, late, known = [], [], set(means)
    for line in lines:
        if line.uses & known:
            late.append(line)
            known.add(line.target)
        else:
            early.append(line)
    return early, late
