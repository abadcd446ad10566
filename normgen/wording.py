"""Prose for the generated file: formulas and docstrings, wrapped to their width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from normgen import dtypes
from normgen.dtypes import FLOAT32, Dtype
from normgen.expr import names, substitute
from normgen.graph import Graph
from normgen.interface import length
from normgen.kernels import Argument, Kernel
from normgen.layout import WIDTH
from normgen.naming import ARGUMENTS, RESULTS
from normgen.plan import NormPlan
from normgen.spec import SpecFile

#: what generated modules need, as tested on a GPU (docs/tested-on.md)
FLOOR = "torch 2.11 with Triton 3.6"
TITLES = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}


def wrap(text: str, indent: int, hanging: int = 0) -> list[str]:
    """Text as lines, to stand at ``indent``; all but the first hang further in."""
    return textwrap.wrap(
        text,
        WIDTH - indent,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def module_docstring(spec: SpecFile, plans: Iterable[NormPlan]) -> list[str]:
    """What the file holds, norm by norm."""
    directions = "forward only"
    if any(norm.backward for norm in spec.kernels):
        directions = "forward and backward"
    lines = [f"Normalization kernels in Triton, {directions}."]
    for plan in plans:
        lines += ["", *wrap(f"{plan.name}: {summary(plan)}", 0, 4)]
        lines += [f"    {line}" for line in formula(plan)]
    lines += [
        "",
        *wrap(
            "Each norm is a function, the same in plain PyTorch (NAME_reference) and "
            "an nn.Module. Tensors on the CPU take the reference. "
            f"Needs {FLOOR}, or newer.",
            0,
        ),
    ]
    return lines


def summary(plan: NormPlan) -> str:
    """One sentence on what a norm computes."""
    title = TITLES[plan.norm.variant]
    what = {
        "none": f"{title} of x",
        "pre_add": f"{title} of x + residual, and that sum",
        "post_add": f"residual + {title} of x",
    }[plan.norm.residual]
    return f"{what}, over {_columns(plan)}."


def _columns(plan: NormPlan) -> str:
    if plan.norm.lengths:
        return f"rows of {length(plan).words}"
    return "rows of any length"


def formula(plan: NormPlan, names: Mapping[str, str] = ARGUMENTS) -> list[str]:
    """The norm in one or two lines of notation, with these names of its inputs."""
    norm, lines = plan.norm, []
    value = "x"
    if norm.residual == "pre_add":
        lines.append(f"h = x + {names['r']}")
        value = "h"
    s = f"mean({value}^2)"
    centred = value
    if norm.variant == "layer_norm":
        s, centred = f"var({value})", f"({value} - mean({value}))"
    eps = "eps" if norm.eps == "argument" else repr(norm.eps)
    root = f"sqrt({s} + {eps})"
    if norm.eps_placement == "outside_sqrt":
        root = f"(sqrt({s}) + {eps})"
    y = f"{centred} / {root}"
    if norm.has_weight:
        offset, w = norm.affine.weight_offset, names["w"]
        y += f" * ({offset} + {w})" if offset else f" * {w}"
    if norm.affine.bias:
        y += f" + {names['b']}"
    if norm.residual == "post_add":
        y = f"{names['r']} + {y}"
    return [*lines, f"y = {y}"]


def gradients(plan: NormPlan) -> list[str]:
    """The backward pass in notation, from what the kernel reads to what it stores."""
    means = {mean.name: f"mean({mean.term})" for mean in plan.adjoint.means}
    prose = {value.name: value.prose for value in plan.graph.statistic.values}
    prose |= {value.name: value.prose for value in plan.graph.statistic.adjoint_values}
    lines = []
    for line in plan.backward_kernels[0].replayed:
        text = line.formula
        if line.target in prose:
            text = substitute(prose[line.target], plan.graph.known)
        lines.append(f"{line.target} = {text}{_in(plan.graph, line.dtype)}")
    for line in plan.adjoint.lines:
        known = {**means, "eps": plan.graph.eps}
        text = substitute(prose.get(line.target, line.formula), known)
        if line.accumulates:
            text = f"sum over rows of {text}"
        lines.append(f"{line.target} = {text}")
    return lines


def _in(graph: Graph, dtype: Dtype) -> str:
    """How a kernel's docstring says that a value is rounded."""
    if dtype == FLOAT32:
        return ""
    listed = [atom for atom in (*ARGUMENTS, *dtypes.CONCRETE) if atom in dtype]
    known = [atom if atom in dtypes.CONCRETE else f"{atom}'s dtype" for atom in listed]
    return f", rounded to {' and '.join(known)}" + (", promoted" if known[1:] else "")


def function_docstring(plan: NormPlan) -> list[str]:
    """Shapes, dtypes, the numerics contract, and errors of the public function."""
    graph, x = plan.graph, _listed(plan.norm.dtype)
    lines = [*wrap(summary(plan), 7), "", *(f"    {line}" for line in formula(plan))]
    lines += ["", "Args:"]
    shape, column, which = "[..., H]", "[H]", f" H is {length(plan).words}."
    if len(plan.norm.lengths) == 1:
        shape, column, which = (
            f"[..., {plan.norm.lengths[0]}]",
            f"[{plan.norm.lengths[0]}]",
            "",
        )
    about = {"x": f"{shape}, {x}. Its rows may be strided.{which}"}
    for t in plan.tensors[1:]:
        at = shape if graph.tensors[t] == "element" else column
        about[ARGUMENTS[t]] = f"{at}, {_allowed(graph, t)}."
    if plan.norm.residual_in_place:
        about["residual"] += (
            " Overwritten with the sum; it may be x, and must not overlap any argument "
            "otherwise."
        )
    if "eps" in plan.arguments:
        about["eps"] = "the epsilon, a number that float32 holds, from 2**-126."
    for name in plan.arguments:
        lines += [f"    {line}" for line in wrap(f"{name}: {about[name]}", 8, 4)]
    lines += ["", "Returns:"]
    made = {
        RESULTS[t]: f"{shape}, {_dtype(graph, graph.dtypes[t])}, contiguous."
        for t in graph.results
        if t not in graph.overwrites
    }
    made |= {RESULTS[t]: "the residual's memory." for t in graph.overwrites}
    for name in plan.results:
        text = f"{name}: {made.get(name, '[...], float32, not differentiable.')}"
        lines += [f"    {line}" for line in wrap(text, 8, 4)]
    lines += ["", "Numerics:"]
    for text in numerics(plan):
        lines += [f"    {line}" for line in wrap(text, 8, 4)]
    lines += ["", "Raises:"]
    for text in errors(plan):
        lines += [f"    {line}" for line in wrap(text, 8, 4)]
    return lines


def errors(plan: NormPlan) -> list[str]:
    """What the function raises."""
    wrong = ["has the wrong shape or device"]
    if plan.norm.residual_in_place:
        wrong.append("cannot be written in place")
    if "eps" in plan.arguments:
        wrong.append("is no number that float32 holds")
    if not plan.norm.backward:
        wrong.append("requires a gradient")
    return [
        "TypeError: an argument is of the wrong type or dtype.",
        f"ValueError: an argument {', or '.join(wrong)}.",
    ]


def numerics(plan: NormPlan) -> list[str]:
    """The contract, filled in: every value, and what it is rounded to."""
    graph, lines = plan.graph, []
    for node in graph.nodes:
        if node is graph.norm:
            lines.append(_statistic(graph))
            continue
        source = ARGUMENTS.get(node.source, node.source)
        names = {**ARGUMENTS, "x": source}
        for helper in node.step.helpers:
            to = graph.dtypes[helper.rounds_to] if helper.rounds_to else FLOAT32
            made = substitute(helper.value, names)
            lines.append(f"{helper.name} = {made}, {_rounded(graph, to)}.")
        text = substitute(node.step.value, names)
        lines.append(f"{node.out} = {text}, {_rounded(graph, node.dtype)}.")
    for t, value in graph.results.items():
        dtype = next(node.dtype for node in graph.nodes if node.out == value)
        if dtype != graph.dtypes[t]:
            stored = _rounded(graph, graph.dtypes[t])
            lines.append(f"{RESULTS[t]} is stored {stored}.")
    if plan.norm.backward:
        lines.append(
            "Gradients are computed in float32 and rounded once; a rounding passes its "
            "gradient on."
        )
    return lines


def _statistic(graph: Graph) -> str:
    """From the rows to x_hat, step by step."""
    made, shown = graph.statistic, []
    for mean in made.means:
        shown.append(f"{mean.name} = mean({substitute(mean.term, graph.known)})")
        shown += [
            f"{value.name} = {substitute(value.prose, graph.known)}"
            for value in made.values
            if mean.name in names(value.prose)
        ]
    shown.append(f"rstd = {substitute(made.rstd.prose, graph.known)}")
    shown.append(f"x_hat = {substitute(made.x_hat, graph.known)}")
    return f"In float32: {', '.join(shown)}."


def _rounded(graph: Graph, dtype: Dtype) -> str:
    if dtype == FLOAT32:
        return "in float32"
    return f"rounded to {_dtype(graph, dtype)}"


def _dtype(graph: Graph, dtype: Dtype) -> str:
    atoms = {t: f"{name}.dtype" for t, name in ARGUMENTS.items()}
    listed = [
        atoms.get(atom, atom)
        for atom in (*ARGUMENTS, *dtypes.CONCRETE)
        if atom in dtype
    ]
    if len(listed) == 1:
        return listed[0]
    return f"the promotion of {' and '.join(listed)}"


def _allowed(graph: Graph, tensor: str) -> str:
    dtype = graph.dtypes[tensor]
    if dtype == graph.dtypes["x"]:
        return "of x's dtype"
    (atom,) = dtype
    return _listed(dtypes.CONCRETE) if atom in ARGUMENTS else atom


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def kernel_docstring(kernel: Kernel, title: str, formulas: Iterable[str]) -> list[str]:
    """A sentence, the formulas, how rows are mapped, and every argument."""
    formulas = [f"    {line}" for text in formulas for line in wrap(text, 8, 4)]
    lines = [*wrap(title, 7), "", *formulas, "", *wrap(kernel.how, 4), "", "Args:"]
    for argument in kernel.arguments:
        lines += _argument(argument)
    return lines


def _argument(argument: Argument) -> list[str]:
    if not argument.doc:
        return []
    text = f"{argument.name}: {argument.doc}."
    return [f"    {line}" for line in wrap(text, 8, 4)]
