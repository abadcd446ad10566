"""The numerics contract in eager torch: the lines of the emitted reference.

The same steps as the kernels', in the same order and with the same names.  Where the
kernels must round by a cast, torch's own type promotion does it here, as in model code.
"""

from __future__ import annotations

from normgen import dtypes
from normgen.dtypes import Dtype
from normgen.expr import is_name, names, substitute
from normgen.graph import Graph, Node
from normgen.naming import ARGUMENTS, RESULTS
from normgen.spec import Norm


def reference_lines(norm: Norm, graph: Graph) -> list[str]:
    """The body of the reference function."""
    lines = ["dtype = x.dtype", "compute = torch.promote_types(dtype, torch.float32)"]
    lines += _rows(graph)
    for mean in graph.statistic.means:
        term = substitute(mean.term, graph.known)
        term = term if is_name(term) else f"({term})"
        lines.append(f"{mean.name} = {term}.mean(-1, keepdim=True)")
        lines += [
            f"{value.name} = {substitute(value.reference, graph.known)}"
            for value in graph.statistic.values
            if mean.name in names(value.reference)
        ]
    rstd = substitute(graph.statistic.rstd.reference, graph.known)
    lines.append(f"rstd = {rstd}")
    for node in (graph.norm, *graph.epilogue):
        lines += _step(graph, node)
    return _without_detour([*lines, *_results(norm, graph)])


def _rows(graph: Graph) -> list[str]:
    """From the arguments to the rows that the statistic is taken of, in ``compute``."""
    lines = []
    for node in graph.prologue:
        names = {**ARGUMENTS, "x": node.source}
        if not node.step.replayed:  # unrounded: what comes after reads this very value
            names = {name: f"{value}.to(compute)" for name, value in names.items()}
        lines.append(f"{node.out} = {substitute(node.step.value, names)}")
        if node.out in graph.results:
            lines += _kept(graph, node)
    normed = graph.norm.source
    if not graph.prologue or graph.prologue[-1].step.replayed:
        lines.append(f"{normed} = {normed}.to(compute)")
    return lines


def _kept(graph: Graph, node: Node) -> list[str]:
    """A returned value, as it is stored."""
    name, stored = RESULTS[node.out], graph.dtypes[node.out]
    if node.dtype == stored:
        return [f"{name} = {node.out}"]
    return [f"{name} = {node.out}.to({_torch(graph, stored)})"]


def _step(graph: Graph, node: Node) -> list[str]:
    names = {**ARGUMENTS, "x": node.source}
    helpers = [
        f"{helper.name} = {substitute(helper.reference, names)}"
        for helper in node.step.helpers
    ]
    formula = substitute(node.step.value, names)
    if node.step.rounds_to is not None and node is not graph.norm:
        formula = f"{formula}.to({_torch(graph, node.dtype)})"
    return [*helpers, f"{node.out} = {formula}"]


def _results(norm: Norm, graph: Graph) -> list[str]:
    """The last lines: results in their dtypes, or copied over an input."""
    last, stored, lines = graph.nodes[-1], graph.dtypes["y"], []
    names = {t: RESULTS[t] for t in graph.results}
    if last.dtype != stored:
        lines.append(f"y = {last.out}.to({_torch(graph, stored)})")
    else:
        names["y"] = last.out
    for t, owner in graph.overwrites.items():
        lines.append(f"{ARGUMENTS[owner]}.copy_({names[t]})")
        names[t] = ARGUMENTS[owner]
    statistics = graph.statistic.saved if norm.save_stats == "always" else ()
    lines += [f"{name} = {name}.squeeze(-1).detach()" for name in statistics]
    return [*lines, f"return {', '.join([*names.values(), *statistics])}"]


def _without_detour(lines: list[str]) -> list[str]:
    """``return value`` where the last two lines are ``y = value`` and ``return y``."""
    *most, made, returned = lines
    name = returned.removeprefix("return ")
    if not made.startswith(f"{name} = "):
        return lines
    return [*most, f"return {made.removeprefix(f'{name} = ')}"]


def _torch(graph: Graph, dtype: Dtype) -> str:
    if dtype == graph.dtypes["x"]:
        return "dtype"
    atoms = {name: f"{host}.dtype" for name, host in ARGUMENTS.items()}
    return dtypes.in_torch(dtype, {**atoms, "x": "dtype"})
