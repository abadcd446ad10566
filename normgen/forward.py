"""The facts of a forward kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from normgen.graph import Graph
from normgen.kernels import (
    COLUMN_DOC,
    OUTPUT_DOC,
    STATISTIC_DOC,
    Kernel,
    Slicer,
    Store,
    Sweep,
    arguments,
    row_doc,
)
from normgen.spec import Norm
from normgen.strategies import Strategy


@dataclass(frozen=True)
class ForwardKernel(Kernel):
    """What the forward templates place.

    A row in registers goes through ``stages``, one a mean, and the ``epilogue``; a row
    in chunks through ``sweeps``, one a mean, and the ``last``.
    """

    outputs: tuple[str, ...]
    overwriting: tuple[tuple[str, str], ...]
    saved_always: tuple[str, ...]
    saved_on_request: tuple[str, ...]
    rstd: str
    stages: tuple[Sweep, ...]
    epilogue: Sweep
    sweeps: tuple[Sweep, ...]
    last: Sweep


def forward_kernel(
    name: str, norm: Norm, graph: Graph, strategy: Strategy
) -> ForwardKernel:
    """The forward kernel of ``norm`` by ``strategy``."""
    elements = tuple(t for t, space in graph.tensors.items() if space == "element")
    columns = tuple(t for t, space in graph.tensors.items() if space == "column")
    outputs = tuple(t for t in graph.results if t not in graph.overwrites)
    slicer = Slicer(
        lines=graph.lines,
        spaces={**graph.tensors, **dict.fromkeys(graph.replayed, "element")},
        tensor_dtypes=graph.dtypes,
        pointers=(*elements, *columns),
    )

    def stores(tensors: Iterable[str]) -> tuple[Store, ...]:
        return tuple(Store(graph.results[t], f"{t}_row") for t in tensors)

    early = stores(graph.replayed)
    late = [t for t in graph.results if t not in graph.replayed]
    values = {graph.results[t] for t in late}
    statistics = {"rstd", *(mean.name for mean in graph.means)}

    stages: list[Sweep] = []
    made: set[str] = set()
    for mean in graph.means:
        stage = slicer.sweep((), made, (mean,), () if stages else early)
        made |= {*stage.made, mean.name}
        stages.append(stage)
    epilogue = slicer.sweep(values, made | {"rstd"}, stores=stores(late))

    sweeps: list[Sweep] = []
    for mean in graph.means:
        memory = graph.replayed if sweeps else ()
        sweeps.append(
            slicer.sweep(
                (),
                {*statistics, *memory},
                (mean,),
                () if sweeps else early,
                published=() if sweeps else graph.replayed,
            )
        )
    last = slicer.sweep(values, {*statistics, *graph.replayed}, stores=stores(late))

    always = graph.statistic.saved if norm.save_stats == "always" else ()
    on_request = graph.statistic.saved if norm.statistics_on_request else ()
    (rstd,) = slicer.cut({"rstd"}, statistics - {"rstd"})
    return ForwardKernel(
        name=name,
        how=strategy.how["forward"],
        arguments=arguments(
            tensors={
                **{t: row_doc(t) for t in elements},
                **dict.fromkeys(columns, COLUMN_DOC),
                **dict.fromkeys(outputs, OUTPUT_DOC),
                **dict.fromkeys(always, STATISTIC_DOC),
                **dict.fromkeys(on_request, f"{STATISTIC_DOC}, or None"),
            },
            strided=elements,
            sizes=(*strategy.sizes["forward"], *({"eps"} & rstd.uses)),
            roundings=slicer.roundings,
            constants=strategy.constants,
        ),
        roundings=slicer.roundings,
        elements=elements,
        columns=columns,
        outputs=outputs,
        overwriting=tuple(graph.overwrites.items()),
        saved_always=always,
        saved_on_request=on_request,
        rstd=slicer.text(rstd),
        stages=tuple(stages),
        epilogue=epilogue,
        sweeps=tuple(sweeps),
        last=last,
    )
