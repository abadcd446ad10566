"""The autograd function of a norm: what it saves, asks for and gives back."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.host import (
    backward_function,
    forward_function,
    saved_tensors,
    taken_dtypes,
)
from normgen.layout import WIDTH, laid_out, unpacked
from normgen.naming import VARIABLES
from normgen.plan import NormPlan


@dataclass(frozen=True)
class Autograd:
    """The facts of the autograd template; each line stands in a method's body."""

    forward: tuple[str, ...]
    forward_call: tuple[str, ...]
    saving: tuple[str, ...]
    saved: tuple[str, ...]
    attributes: tuple[str, ...]
    returned: str
    backward: tuple[str, ...]
    absent: tuple[str, ...]
    backward_call: tuple[str, ...]
    refusal: tuple[str, ...]
    closing: tuple[str, ...]
    gradients: str


def autograd(plan: NormPlan) -> Autograd:
    """The facts of the autograd function of a norm that has a backward pass."""
    kernel, adjoint = plan.backward_kernels[0], plan.adjoint
    keep = ("keep_statistics=True",) if plan.norm.statistics_on_request else ()
    statistics = plan.results[len(plan.graph.results) :]
    remembered = taken_dtypes(plan)
    eps = ("eps",) if "eps" in kernel.runtime_arguments else ()
    incoming = tuple(VARIABLES[t] for t in adjoint.tensors)
    closing, gradients = _given(plan)
    kept = dict.fromkeys((*remembered, *(["x_dtype"] if closing else [])))
    attributes = [f"ctx.{name} = {name}" for name in eps]
    attributes += [f"ctx.{d} = {d.removesuffix('_dtype')}.dtype" for d in kept]
    if len(incoming) > 1:
        attributes.append("ctx.set_materialize_grads(False)")
    if statistics:
        attributes.append(f"ctx.mark_non_differentiable({', '.join(statistics)})")
    inputs = (VARIABLES[t] for t in (*kernel.elements, *kernel.columns))
    return Autograd(
        forward=laid_out("def forward(", ("ctx", *plan.arguments), "):", 4),
        forward_call=unpacked(
            forward_function(plan).results,
            f"_{plan.name}_forward",
            (*plan.arguments, *keep),
            8,
        ),
        saving=laid_out("ctx.save_for_backward(", saved_tensors(plan), ")", 8),
        saved=_saved(saved_tensors(plan)),
        attributes=tuple(attributes),
        returned=", ".join(plan.results),
        backward=laid_out(
            "def backward(",
            ("ctx", *incoming, *(("*_",) if statistics else ())),
            "):",
            4,
        ),
        absent=_absent(incoming, len(plan.arguments)),
        backward_call=unpacked(
            backward_function(plan).results,
            f"_{plan.name}_backward",
            (
                *inputs,
                *(VARIABLES.get(t, t) for t, _ in kernel.saved),
                *(f"ctx.{name}" for name in (*eps, *remembered)),
                *_needs(plan),
            ),
            8,
        ),
        refusal=_refusal(
            backward_function(plan).results, (*incoming, *saved_tensors(plan))
        ),
        closing=closing,
        gradients=", ".join(
            [*gradients, *(["None"] if "eps" in plan.arguments else [])]
        ),
    )


def _saved(tensors: tuple[str, ...]) -> tuple[str, ...]:
    """The line or lines that take out what was saved."""
    targets = ", ".join(tensors)
    if len(f"{targets} = ctx.saved_tensors") <= WIDTH - 8:
        return (f"{targets} = ctx.saved_tensors",)
    if len(f"{targets} = (") <= WIDTH - 8:
        return (f"{targets} = (", "    ctx.saved_tensors", ")")
    return ("(", *(f"    {tensor}," for tensor in tensors), ") = ctx.saved_tensors")


def _absent(incoming: tuple[str, ...], n_arguments: int) -> tuple[str, ...]:
    """A gradient that did not come is one row of zeros, read again for every row."""
    if len(incoming) == 1:
        return ()
    if len(incoming) > 2:
        return _absent_of_many(incoming, n_arguments)
    first, second = incoming
    lines = [
        f"if {first} is None and {second} is None:",
        f"    return {', '.join(['None'] * n_arguments)}",
    ]
    for missing, given in ((first, second), (second, first)):
        zeros = f"{given}.new_zeros({given}.shape[-1])"
        lines += [
            f"if {missing} is None:",
            f"    {missing} = {zeros}.expand_as({given})",
        ]
    return tuple(lines)


def _absent_of_many(incoming: tuple[str, ...], n_arguments: int) -> tuple[str, ...]:
    listed = ", ".join(incoming)
    return (
        f"given = next((g for g in ({listed}) if g is not None), None)",
        "if given is None:",
        f"    return {', '.join(['None'] * n_arguments)}",
        "zeros = given.new_zeros(given.shape[-1]).expand_as(given)",
        *(f"{name} = zeros if {name} is None else {name}" for name in incoming),
    )


def _refusal(made: tuple[str, ...], inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Gradients that hang on all they came from, and refuse a second derivative."""
    targets = made if len(made) > 1 else (f"({made[0]},)",)
    items = (str(len(made)), *made, *inputs)
    return unpacked(targets, "_OnceDifferentiable.apply", items, 12)


def _needs(plan: NormPlan) -> list[str]:
    kernel = plan.backward_kernels[0]
    made = []
    for gradient in (*kernel.gradients, *(a.gradient for a in kernel.accumulations)):
        owners = plan.adjoint.owners(gradient, plan.tensors)
        at = sorted(plan.arguments.index(VARIABLES[t]) for t in owners)
        test = " or ".join(f"ctx.needs_input_grad[{i}]" for i in at)
        made.append(f"needs_{VARIABLES[gradient]}={test}")
    return made


def _given(plan: NormPlan) -> tuple[tuple[str, ...], list[str]]:
    """The last lines, and the gradient of each tensor argument."""
    own = {t: VARIABLES[plan.adjoint.of(t)] for t in plan.tensors}
    if plan.gradient_dtype(plan.adjoint.of("x")) == plan.graph.dtypes["x"]:
        return (), list(own.values())
    # dx was made in the dtype of the sum, and is rounded once more for x alone
    sharing = [t for t in plan.tensors if own[t] == "dx" and t != "x"]
    names = {t: f"d{VARIABLES[t]}" for t in sharing}
    lines = [f"{name} = dx" for name in names.values()]
    lines += ["if dx is not None:", "    dx = dx.to(ctx.x_dtype)"]
    return tuple(lines), list({**own, **names}.values())
