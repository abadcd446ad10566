"""The autograd function of a norm: what it saves, asks for and gives back."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.eager import HOST
from normgen.host import (
    VARIABLES,
    backward_function,
    forward_function,
    remembered_dtypes,
    saved_tensors,
)
from normgen.plan import NormPlan


@dataclass(frozen=True)
class Autograd:
    """The facts of the autograd template; each line stands in a method's body."""

    rows: tuple[str, ...]
    forward_arguments: tuple[str, ...]
    forward_results: str
    saved: str
    attributes: tuple[str, ...]
    shaping: tuple[str, ...]
    returned: str
    incoming: tuple[str, ...]
    absent: tuple[str, ...]
    backward_arguments: tuple[str, ...]
    backward_results: str
    closing: tuple[str, ...]
    gradients: str


def autograd(plan: NormPlan) -> Autograd:
    """The facts of the autograd function of a norm that has a backward pass."""
    keep = ("keep_statistics=True",) if plan.norm.statistics_on_request else ()
    made = forward_function(plan).results
    values = [VARIABLES[t] for t in plan.graph.results]
    statistics = plan.results[len(values) :]
    kernel = plan.backward_kernels[0]
    remembered = remembered_dtypes(plan)
    eps = ("eps",) if "eps" in kernel.runtime_arguments else ()
    incoming = tuple(VARIABLES[t] for t in plan.adjoint.tensors)
    attributes = [f"ctx.eps = {name}" for name in eps]
    attributes += [f"ctx.{d} = {d.removesuffix('_dtype')}.dtype" for d in remembered]
    if len(values) > 1:
        attributes.append("ctx.set_materialize_grads(False)")
    shaping = [f"{name} = {name}.view(shape)" for name in values]
    shaping += [f"{name} = {name}.view(shape[:-1])" for name in statistics]
    if statistics:
        shaping.append(f"ctx.mark_non_differentiable({', '.join(statistics)})")
    closing, own = _given(plan)
    return Autograd(
        rows=tuple(HOST[t] for t in plan.tensors if plan.graph.tensors[t] == "element"),
        forward_arguments=(*plan.arguments, *keep),
        forward_results=", ".join(made),
        saved=", ".join(saved_tensors(plan)),
        attributes=tuple(attributes),
        shaping=tuple(shaping),
        returned=", ".join(plan.results),
        incoming=(*incoming, *(("*_",) if statistics else ())),
        absent=_absent(incoming),
        backward_arguments=(
            *_backward_inputs(plan, incoming),
            *(f"ctx.{name}" for name in (*eps, *remembered)),
            *_needs(plan),
        ),
        backward_results=", ".join(backward_function(plan).results),
        closing=closing,
        gradients=", ".join([*own, *(["None"] if "eps" in plan.arguments else [])]),
    )


def _absent(incoming: tuple[str, ...]) -> tuple[str, ...]:
    """A gradient that did not come is one row of zeros, read again for every row."""
    if len(incoming) == 1:
        return ()
    dy, other = incoming
    lines = []
    for missing, given in ((dy, other), (other, dy)):
        zeros = f"{given}.new_zeros(ctx.shape[-1]).expand(ctx.shape)"
        lines += [f"if {missing} is None:", f"    {missing} = {zeros}"]
    return tuple(lines)


def _backward_inputs(plan: NormPlan, incoming: tuple[str, ...]) -> list[str]:
    kernel = plan.backward_kernels[0]
    inputs = [VARIABLES[t] for t in (*kernel.elements, *kernel.columns)]
    rows = [f"_as_rows({name})" if name in incoming else name for name in inputs]
    return [*rows, *kernel.saved]


def _needs(plan: NormPlan) -> list[str]:
    kernel, aliases = plan.backward_kernels[0], plan.adjoint.aliases
    sums = (total.gradient for total in kernel.accumulations)
    made = []
    for gradient in (*kernel.gradients, *sums):
        owners = [gradient[1:], *(t for t, g in aliases.items() if g == gradient)]
        at = sorted(plan.arguments.index(HOST[t]) for t in owners)
        test = " or ".join(f"ctx.needs_input_grad[{i}]" for i in at)
        made.append(f"needs_{VARIABLES[gradient]}={test}")
    return made


def _given(plan: NormPlan) -> tuple[tuple[str, ...], list[str]]:
    """The last lines, and the gradient of each tensor argument."""
    aliases = plan.adjoint.aliases
    own = {t: VARIABLES[aliases.get(t, f"d{t}")] for t in plan.tensors}
    if plan.graph.dtypes[plan.backward_kernels[0].rows] == plan.graph.dtypes["x"]:
        return (), list(own.values())
    # dx was made in the residual's dtype, and is rounded once more for x alone
    lines = ("dresidual = dx", "if dx is not None:", "    dx = dx.to(ctx.x_dtype)")
    return lines, list({**own, "r": "dresidual"}.values())
