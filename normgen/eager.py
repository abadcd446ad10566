"""The numerics contract in eager torch: the lines of the emitted reference.

The same steps as the kernels', in the same order and with the same names.  Where the
kernels must round by a cast, torch's own type promotion does it here, as in model code.
"""

from __future__ import annotations

from normgen import dtypes
from normgen.dtypes import Dtype
from normgen.expr import is_name, substitute
from normgen.forward import overwritten
from normgen.graph import Graph, Node
from normgen.spec import Norm

#: kernel name of a tensor -> name of the argument in Python
HOST = {"x": "x", "w": "weight", "b": "bias", "r": "residual"}


def reference_lines(norm: Norm, graph: Graph) -> list[str]:
    """The body of the reference function."""
    lines = ["dtype = x.dtype", "compute = torch.promote_types(dtype, torch.float32)"]
    lines += _rows(norm, graph)
    for mean in graph.statistic.means:
        term = substitute(mean.term, graph.known)
        term = term if is_name(term) else f"({term})"
        lines.append(f"{mean.name} = {term}.mean(-1, keepdim=True)")
        lines += [
            f"{value.name} = {substitute(value.reference, graph.known)}"
            for value in graph.statistic.values
            if mean.name in value.reference
        ]
    rstd = substitute(graph.statistic.rstd.reference, graph.known)
    lines.append(f"rstd = {rstd}")
    for node in (graph.norm, *graph.epilogue):
        lines += _step(graph, node)
    return [*lines, *_results(norm, graph)]


def _rows(norm: Norm, graph: Graph) -> list[str]:
    """From the arguments to the rows that the statistic is taken of, in ``compute``."""
    if not graph.prologue:
        return ["x = x.to(compute)"]
    (node,) = graph.prologue
    if node.step.replayed:
        formula = substitute(node.step.value, HOST)
        return [f"h = {formula}", "residual_sum = h", "h = h.to(compute)"]
    upcast = {name: f"{host}.to(compute)" for name, host in HOST.items()}
    return [
        f"h = {substitute(node.step.value, upcast)}",
        "residual_sum = h.to(residual.dtype)",
    ]


def _step(graph: Graph, node: Node) -> list[str]:
    names = {**HOST, "x": node.source}
    helpers = [
        f"{helper.name} = {substitute(helper.reference, names)}"
        for helper in node.step.helpers
    ]
    formula = substitute(node.step.value, names)
    if node.step.rounds_to is not None and node is not graph.norm:
        formula = f"{formula}.to({_torch(graph, node.dtype)})"
    return [*helpers, f"{node.out} = {formula}"]


def _results(norm: Norm, graph: Graph) -> list[str]:
    last = graph.nodes[-1]
    value = last.out
    lines = []
    stored = graph.dtypes["y"]
    if last.dtype != stored:
        lines.append(f"y = {value}.to({_torch(graph, stored)})")
        value = "y"
    results = [value]
    if "h" in graph.results:
        results.append("residual_sum")
    in_place = overwritten(norm, graph)
    if in_place:
        at = 1 if in_place == "h" else 0
        results[at] = f"residual.copy_({results[at]})"
    if norm.save_stats == "always":
        results += [f"{s}.squeeze(-1).detach()" for s in graph.statistic.saved]
    return [*lines, f"return {', '.join(results)}"]


def _torch(graph: Graph, dtype: Dtype) -> str:
    if dtype == graph.dtypes["x"]:
        return "dtype"
    atoms = {name: f"{host}.dtype" for name, host in HOST.items()}
    return dtypes.in_torch(dtype, {**atoms, "x": "dtype"})
