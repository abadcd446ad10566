"""The facts of a forward kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from normgen.graph import Graph, Line
from normgen.grid import Grid, Pointer
from normgen.kernels import Kernel, Slicer, Store, Sweep, arguments
from normgen.spaces import ELEMENT, ROW
from normgen.spec import Norm
from normgen.strategies import Strategy


@dataclass(frozen=True)
class ForwardKernel(Kernel):
    """What the forward templates place.

    A row in registers goes through ``stages``, one a mean, and the ``epilogue``; a row
    in chunks through ``sweeps``, one a mean, and the ``last`` ones.  Statistics are
    stored ``saved_always``, with their values, or ``saved_on_request``.
    """

    outputs: tuple[str, ...]
    overwriting: tuple[tuple[str, str], ...]
    saved_always: tuple[tuple[str, str], ...]
    saved_on_request: tuple[str, ...]
    stages: tuple[Sweep, ...]
    epilogue: Sweep
    sweeps: tuple[Sweep, ...]
    last: tuple[Sweep, ...]


def forward_kernel(
    name: str, norm: Norm, graph: Graph, grid: Grid, strategy: Strategy
) -> ForwardKernel:
    """The forward kernel of ``norm`` by ``strategy``."""
    elements = tuple(t for t, space in graph.tensors.items() if space.per_row)
    columns = tuple(t for t, space in graph.tensors.items() if not space.per_row)
    stored = {t: v for t, v in graph.results.items() if graph.spaces[t] == ELEMENT}
    outputs = tuple(t for t in stored if t not in graph.overwrites)
    slicer = Slicer(
        lines=graph.lines,
        spaces={**graph.tensors, **dict.fromkeys(graph.replayed, ELEMENT)},
        grid=grid,
        tensor_dtypes=graph.dtypes,
        pointers=(*elements, *columns),
    )

    def stores(tensors: Iterable[str]) -> tuple[Store, ...]:
        return tuple(Store(stored[t], f"{t}_row") for t in tensors)

    early = stores(graph.replayed)
    late = [t for t in stored if t not in graph.replayed]
    values = {stored[t] for t in late}
    scalars = _scalars(graph)

    stages: list[Sweep] = []
    made: set[str] = set()
    for mean, following in zip(graph.means, scalars, strict=True):
        first = () if stages else early
        stage = slicer.sweep((), made, (mean,), following, first)
        made |= {*stage.made, mean.name, *(line.target for line in following)}
        stages.append(stage)
    epilogue = slicer.sweep(values, made, stores=stores(late))

    sweeps: list[Sweep] = []
    for mean, following in zip(graph.means, scalars, strict=True):
        memory = graph.replayed if sweeps else ()
        first, published = ((), ()) if sweeps else (early, graph.replayed)
        given = {*graph.per_row, *memory}
        sweeps.append(slicer.sweep((), given, (mean,), following, first, published))
    given = {*graph.per_row, *graph.replayed}
    last = slicer.sweep(values, given, stores=stores(late))

    always = graph.statistic.saved if norm.save_stats == "always" else ()
    on_request = graph.statistic.saved if norm.statistics_on_request else ()
    rows = {t: graph.statistic.factor for t in graph.spaces if graph.spaces[t] == ROW}
    strided = tuple(t for t in graph.tensors if graph.tensors[t].is_strided)
    eps = {"eps"} & set[str]().union(*(line.uses for line in graph.lines))
    return ForwardKernel(
        name=name,
        how=strategy.told("forward", grid.words),
        grid=grid,
        prelude=grid.prelude(
            {
                **dict.fromkeys(elements, Pointer(grid.input_kind)),
                **{t: Pointer(grid.kind(graph.tensors[t])) for t in columns},
                **dict.fromkeys(outputs, Pointer("output")),
                **dict.fromkeys((*rows, *always), Pointer("statistic")),
                **dict.fromkeys(on_request, Pointer("statistic", optional=True)),
            }
        ),
        arguments=arguments(
            tensors={
                **{t: grid.row_doc(t) for t in elements},
                **{t: grid.column_doc(graph.tensors[t], t) for t in columns},
                **dict.fromkeys(outputs, grid.output_doc),
                **dict.fromkeys(rows, grid.statistic_doc.removesuffix(", float32")),
                **dict.fromkeys(always, grid.statistic_doc),
                **dict.fromkeys(on_request, f"{grid.statistic_doc}, or None"),
            },
            strided=grid.given_strides(strided, graph.tensors),
            sizes=(*strategy.sizes["forward"], *grid.sizes, *eps),
            roundings=slicer.roundings,
            constants=strategy.constants,
            grid=grid,
        ),
        roundings=slicer.roundings,
        elements=elements,
        columns=columns,
        strided=strided,
        outputs=outputs,
        overwriting=tuple(graph.overwrites.items()),
        saved_always=(*rows.items(), *((t, t) for t in always)),
        saved_on_request=on_request,
        stages=tuple(stages),
        epilogue=epilogue,
        sweeps=tuple(sweeps),
        last=(last,) if stored else (),
    )


def _scalars(graph: Graph) -> list[list[Line]]:
    """After each reduction, the values of a row that can be made then."""
    known: set[str] = set()
    lines = [line for line in graph.lines if line.target in graph.per_row]
    made = []
    for mean in graph.means:
        known.add(mean.name)
        following = []
        for line in lines:
            ready = line.uses & graph.per_row <= known
            if ready and line.target not in known:
                following.append(line)
                known.add(line.target)
        made.append(following)
    return made
