"""Prose for the generated file: formulas and docstrings, wrapped to their width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace

from normgen import dtypes
from normgen.dtypes import FLOAT32, Dtype
from normgen.expr import names, substitute
from normgen.graph import Graph, Node
from normgen.interface import length, x_shape
from normgen.kernels import Argument, Kernel
from normgen.layout import WIDTH
from normgen.naming import ARGUMENTS, RESULTS
from normgen.notation import in_prose
from normgen.plan import NormPlan
from normgen.spaces import ELEMENT, GROUP, HEAD, ROW, SAMPLE
from normgen.spec import SpecFile
from normgen.statistics import Reduction, Value

#: what generated modules need, as tested on a GPU (docs/tested-on.md)
FLOOR = "torch 2.11 with Triton 3.6"
TITLES = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "l2_norm": "L2 norm"}


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
        lines += _told_at(4, formula(plan))
    lines += [
        "",
        *wrap(
            "Each norm is a function, the same in plain PyTorch (NAME_reference) and "
            "an nn.Module. Tensors on the CPU take the reference. "
            f"Needs {FLOOR}, or newer.",
            0,
        ),
    ]
    if any(norm.replaces for norm in spec.kernels):
        lines.append("patch(model) puts them into a model, unpatch(model) undoes it.")
    return lines


def _told_at(indent: int, formulas: Iterable[str]) -> list[str]:
    """Formulas, further in than the text around them."""
    return [f"    {line}" for text in formulas for line in wrap(text, indent, 4)]


def summary(plan: NormPlan) -> str:
    """One sentence on what a norm computes."""
    norm, row = plan.norm, "x"
    title = TITLES[norm.variant]
    if norm.output == "factor":
        title = f"The factor of {title}"
    scaled = "scaled " if norm.branch_scale is not None else ""
    if norm.residual == "pre_add":
        row = f"{scaled}x + residual"
    if norm.gate is not None and norm.gate.position == "before":
        row += f" times {norm.gate.activation}(gate)"
    what = f"{title} of {row}"
    if norm.group_size is not None:
        what += f", in groups of {norm.group_size}"
    if norm.second_affine:
        what += ", with two weights"
    if norm.modulation is not None:
        what += ", modulated twice" if norm.modulation.second else ", modulated"
    if norm.gate is not None and norm.gate.position == "after":
        what += f", times {norm.gate.activation}(gate)"
    if norm.post_activation != "none":
        what += f", then {norm.post_activation}"
    what = {
        "none": what,
        "pre_add": f"{what}, and that sum",
        "post_add": f"residual + {scaled}{what}",
    }[norm.residual]
    return f"{what}, over {_columns(plan)}."


def _columns(plan: NormPlan) -> str:
    across = "channels" if plan.norm.axis == "channel" else "rows"
    if plan.norm.lengths:
        return f"{across} of {length(plan).words}"
    return f"{across} of any length"


def formula(plan: NormPlan, names: Mapping[str, str] = ARGUMENTS) -> list[str]:
    """The norm in a few lines of notation, with these names of its inputs."""
    graph, lines, row = plan.graph, [], "x"
    for node in graph.prologue:
        if node.step.rounds_to is None or node.step.operands:
            value = _told(node, {"x": row}, names)
            kept = node.step.returned or node is graph.prologue[-1]
            row = node.out if kept else f"({value})"
            lines += [f"{row} = {value}"] if kept else []
    eps = "eps" if plan.norm.eps == "argument" else repr(plan.norm.eps)
    notation = graph.statistic.notation.format(x=row, eps=eps)
    if plan.norm.output == "factor":
        return [*lines, f"factor = 1 / {notation.split(' / ', 1)[1]}"]
    made = {"x_hat": _X_HAT}
    for node in graph.epilogue:
        source = made[node.source]
        if node.step.rounds_to is not None:
            made[node.out] = source
            continue
        known = {"x": source, "numerator": source, "row_gain": "w", **_SIZES}
        made[node.out] = _told(node, known, names)
    for t, value in graph.results.items():
        if value in made:
            lines.append(f"{t} = {made[value].replace(_X_HAT, notation)}")
    return lines


_SIZES = {"N": "H", "root_n": "sqrt(H)"}
#: Stands for x_hat in a formula; ``x^2`` is no Python.
_X_HAT = "x_hat_"


def _told(node: Node, known: Mapping[str, str], names: Mapping[str, str]) -> str:
    """The value of a step, with its helper values in place."""
    operands = {o.name: names[o.name] for o in node.step.operands}
    helpers = {h.name: in_prose(h.value) for h in node.step.helpers}
    text = in_prose(node.step.value)
    return substitute(substitute(text, {**helpers, **known}), operands)


def gradients(plan: NormPlan) -> list[str]:
    """The backward pass in notation, from what the kernel reads to what it stores."""
    means = {mean.name: _reduced(mean) for mean in plan.adjoint.means}
    lines = []
    for line in plan.backward_kernels[0].replayed:
        text = in_prose(substitute(line.formula, _SIZES))
        lines.append(f"{line.target} = {text}{_in(plan.graph, line.dtype)}")
    for line in plan.adjoint.lines:
        text = in_prose(substitute(line.formula, {**means, **_SIZES}))
        if line.accumulates:
            text = f"sum over rows of {text}"
        lines.append(f"{line.target} = {text}")
    return lines


def _reduced(mean: Reduction) -> str:
    """A reduction in notation: a mean, or a sum divided by another count."""
    if mean.over == "N":
        return f"mean({mean.term})"
    return f"sum({mean.term})" + (f" / ({mean.over})" if mean.over else "")


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
    lines = [*wrap(summary(plan), 7), "", *_told_at(8, formula(plan)), "", "Args:"]
    columns, which = "H", f" H is {length(plan).words}."
    if len(plan.norm.lengths) == 1:
        columns, which = str(plan.norm.lengths[0]), ""
    shape = x_shape(plan, columns)
    channel = plan.norm.axis == "channel"
    layout = "Copied unless contiguous" if channel else "Its rows may be strided"
    about = {"x": f"{shape}, {x}. {layout}.{which}"}
    wide = (
        f"[samples, {columns}, 1, ...]" if channel else f"[samples, 1, ..., {columns}]"
    )
    for t in plan.tensors[1:]:
        at = {
            ELEMENT: shape,
            HEAD: f"[heads, {columns}]",
            GROUP: f"[{plan.norm.group_size}]",
            SAMPLE: f"[samples, {columns}] or {wide}",
        }.get(graph.tensors[t], f"[{columns}]")
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
    row = {ROW: x_shape(plan, "1")}
    made = {
        RESULTS[t]: f"{row.get(graph.spaces[t], shape)}, "
        f"{_dtype(graph, graph.dtypes[t])}, contiguous."
        for t in graph.results
        if t not in graph.overwrites
    }
    made |= {RESULTS[t]: "the residual's memory." for t in graph.overwrites}
    for name in plan.results:
        about_it = made.get(name, f"{_rows(plan)}, float32, not differentiable.")
        lines += [f"    {line}" for line in wrap(f"{name}: {about_it}", 8, 4)]
    lines += ["", "Numerics:"]
    for text in numerics(plan):
        lines += [f"    {line}" for line in wrap(text, 8, 4)]
    lines += ["", "Raises:"]
    for text in errors(plan):
        lines += [f"    {line}" for line in wrap(text, 8, 4)]
    return lines


def _rows(plan: NormPlan) -> str:
    """The shape of a statistic."""
    if plan.norm.axis == "channel":
        return "[samples, ...]"
    return "[..., groups]" if plan.norm.group_size is not None else "[...]"


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
        names = {**ARGUMENTS, "x": source, "numerator": graph.numerator, **_SIZES}
        used = _used(node)
        for helper in node.step.helpers:
            if helper.name in used:
                made = substitute(in_prose(helper.value), names)
                to = _rounded(graph, graph.helper_dtype(helper))
                lines.append(f"{helper.name} = {made}, {to}.")
        text = substitute(in_prose(node.step.value), names)
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


def _used(node: Node) -> frozenset[str]:
    """The names that a step's value reads, as it is told."""
    return names(in_prose(node.step.value))


def _statistic(graph: Graph) -> str:
    """From the rows to x_hat, step by step."""
    shown = []
    for part in graph.statistic.parts:
        if isinstance(part, Reduction):
            mean = replace(part, term=substitute(part.term, graph.known))
            shown.append(f"{mean.name} = {_reduced(mean)}")
        else:
            shown.append(_value(graph, part))
    if graph.norm.out == "factor":
        shown.append(f"factor = {graph.statistic.factor}")
    elif any("x_hat" in line.uses for line in graph.lines) or not graph.epilogue:
        shown.append(_value(graph, graph.statistic.x_hat))
    rounded = any(value.rounds for value in graph.statistic.values)
    where = ", rounded where it says so" if rounded else ""
    return f"In float32{where}: {', '.join(shown)}."


def _value(graph: Graph, value: Value) -> str:
    rounded = f" rounded to {_dtype(graph, graph.dtypes['x'])}" if value.rounds else ""
    formula = in_prose(substitute(value.formula, graph.known))
    return f"{value.name} = {formula}{rounded}"


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
    told = _told_at(8, formulas)
    lines = [*wrap(title, 7), "", *told, "", *wrap(kernel.how, 4), "", "Args:"]
    for argument in kernel.arguments:
        lines += _argument(argument)
    return lines


def _argument(argument: Argument) -> list[str]:
    if not argument.doc:
        return []
    text = f"{argument.name}: {argument.doc}."
    return [f"    {line}" for line in wrap(text, 8, 4)]
