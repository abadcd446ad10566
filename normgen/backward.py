"""The facts of a backward kernel."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.adjoint import Adjoint
from normgen.expr import names
from normgen.graph import Graph, Line
from normgen.kernels import (
    COLUMN_DOC,
    OUTPUT_DOC,
    PARTIAL_DOC,
    STATISTIC_DOC,
    Kernel,
    Slicer,
    Sweep,
    arguments,
    row_doc,
)
from normgen.statistics import Mean
from normgen.strategies import Strategy


@dataclass(frozen=True)
class Accumulation:
    """A column gradient: ``gradient += formula``, row after row."""

    gradient: str
    formula: str

    @property
    def line(self) -> str:
        """The statement that adds one row."""
        return f"{self.gradient} += {self.formula}"


@dataclass(frozen=True)
class BackwardKernel(Kernel):
    """What the backward templates place.

    A row in registers is replayed and differentiated up to the row means (``early``),
    and from them on (``late``).  A row in chunks goes through ``first`` for the means,
    and ``second`` for the gradients.
    """

    saved: tuple[str, ...]
    gradients: tuple[str, ...]
    accumulations: tuple[Accumulation, ...]
    means: tuple[Mean, ...]
    early: tuple[str, ...]
    late: tuple[str, ...]
    first: Sweep
    second: Sweep
    replayed: tuple[Line, ...]


def backward_kernel(
    name: str, graph: Graph, adjoint: Adjoint, strategy: Strategy
) -> BackwardKernel:
    """The backward kernel of a norm by ``strategy``."""
    memory = {*graph.replayed, *graph.statistic.saved}
    means = {mean.name for mean in adjoint.means}
    terms = set[str]().union(*(names(mean.term) for mean in adjoint.means))
    pure = [line for line in adjoint.lines if not line.accumulates]
    order = list(adjoint.gradients)
    adding = [line for line in adjoint.lines if line.accumulates]
    adding.sort(key=lambda line: order.index(line.target))
    added = set[str]().union(*(line.uses for line in adding))
    elements = tuple(g for g, space in adjoint.gradients.items() if space == "element")
    spaces = {
        **adjoint.tensors,
        **graph.tensors,
        **dict.fromkeys(graph.replayed, "element"),
    }

    lines = (*graph.lines, *pure)
    plain = Slicer(lines, spaces, graph.dtypes, ())
    whole = plain.cut({*elements, *added, *terms}, memory)
    read = {*elements, *added, *terms}
    inputs = plain.loads(whole, read, "element")
    columns = plain.loads(whole, read, "column")
    slicer = Slicer(lines, spaces, graph.dtypes, (*inputs, *columns))
    early, late = _about(whole, means)
    first = slicer.sweep(terms, memory)
    second = slicer.sweep({*elements, *added}, {*memory, *means})
    saved = _used(whole, graph.statistic.saved)
    eps = {"eps"} & set[str]().union(*(line.uses for line in whole))
    return BackwardKernel(
        name=name,
        how=strategy.how["backward"],
        arguments=arguments(
            tensors={
                **{t: row_doc(t) for t in inputs},
                **dict.fromkeys(columns, COLUMN_DOC),
                **dict.fromkeys(saved, STATISTIC_DOC),
                **dict.fromkeys(elements, OUTPUT_DOC + ", or None"),
                **{f"{a.target}_partial": PARTIAL_DOC + ", or None" for a in adding},
            },
            strided=inputs,
            sizes=(*strategy.sizes["backward"], *eps),
            roundings=slicer.roundings,
            constants=strategy.constants,
        ),
        roundings=slicer.roundings,
        elements=inputs,
        columns=columns,
        saved=saved,
        gradients=elements,
        accumulations=tuple(Accumulation(a.target, a.formula) for a in adding),
        means=adjoint.means,
        early=tuple(map(slicer.text, early)),
        late=tuple(map(slicer.text, late)),
        first=first,
        second=second,
        replayed=tuple(line for line in whole if line in graph.lines),
    )


def _about(lines: list[Line], means: set[str]) -> tuple[list[Line], list[Line]]:
    """The lines that need none of the row means, and those that do."""
    early, late, known = [], [], set(means)
    for line in lines:
        if line.uses & known:
            late.append(line)
            known.add(line.target)
        else:
            early.append(line)
    return early, late


def _used(lines: list[Line], statistics: tuple[str, ...]) -> tuple[str, ...]:
    read = set[str]().union(*(line.uses for line in lines))
    return tuple(name for name in statistics if name in read)
