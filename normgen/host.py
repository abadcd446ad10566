"""The host side of a norm: allocations and launches, as finished lines.

Inputs come in the shape that they have in the call; what a kernel reads per element is
turned to rows here, [n_rows, hidden_size], named NAME_rows.  Results are allocated in
the shape of x, contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normgen import dtypes
from normgen.dtypes import Dtype
from normgen.kernels import Kernel
from normgen.layout import laid_out
from normgen.naming import LEARNED, VARIABLES
from normgen.plan import Branch, NormPlan
from normgen.tables import lookup, tiles


@dataclass(frozen=True)
class Function:
    """A function that allocates what a kernel writes, and launches it.

    ``rows`` are the tensors that it turns to rows, ``columns`` those that it needs
    adjacent; ``closing`` are lines that follow the launch.
    """

    opening: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    alignment: str
    allocations: tuple[str, ...]
    lookup: tuple[str, ...]
    tiles: str
    launches: tuple[str, ...]
    results: tuple[str, ...]
    closing: tuple[str, ...] = ()
    launched_if: str = ""

    @property
    def return_statement(self) -> str:
        """Its return statement."""
        return f"return {', '.join(self.results)}".rstrip()


def forward_function(plan: NormPlan) -> Function:
    """``_NAME_forward``: the arguments -> results and statistics."""
    kernel = plan.forward_kernels[0]
    atoms = {t: f"{VARIABLES[t]}.dtype" for t in plan.tensors}
    parameters = [f"{VARIABLES[t]}: torch.Tensor" for t in plan.tensors]
    parameters += ["eps: float"] if "eps" in plan.arguments else []
    parameters += ["keep_statistics: bool"] if kernel.saved_on_request else []
    statistic = "x.new_empty(x.shape[:-1], dtype=torch.float32)"
    allocations = [
        line for t in kernel.outputs for line in _output(plan, VARIABLES[t], t, atoms)
    ]
    allocations += [f"{name} = {statistic}" for name in kernel.saved_always]
    allocations += [
        f"{name} = {statistic} if keep_statistics else None"
        for name in kernel.saved_on_request
    ]
    overwritten = (VARIABLES[owner] for owner in plan.graph.overwrites.values())
    given = len(plan.graph.results) + len(kernel.saved_always)
    types = ["torch.Tensor"] * given
    types += ["torch.Tensor | None"] * len(kernel.saved_on_request)
    return Function(
        opening=_opening(f"_{plan.name}_forward", parameters, types),
        rows=tuple(VARIABLES[t] for t in kernel.elements),
        columns=tuple(VARIABLES[t] for t in kernel.columns),
        alignment=_alignment(kernel),
        allocations=(*allocations, *_roundings(kernel, atoms)),
        lookup=lookup(plan, "forward"),
        tiles=tiles(plan.forward_branches),
        launches=_launches(plan.forward_branches, plan.forward_kernels),
        results=(
            *(VARIABLES[plan.graph.overwrites.get(t, t)] for t in plan.graph.results),
            *kernel.saved_always,
            *kernel.saved_on_request,
        ),
        closing=tuple(
            f"torch.autograd.graph.increment_version({t})" for t in overwritten
        ),
    )


def backward_function(plan: NormPlan) -> Function:
    """``_NAME_backward``: incoming gradients and what was saved -> gradients."""
    kernel = plan.backward_kernels[0]
    atoms = _backward_atoms(plan)
    inputs = [VARIABLES[t] for t in (*kernel.elements, *kernel.columns)]
    parameters = [f"{name}: torch.Tensor" for name in (*inputs, *kernel.saved)]
    parameters += ["eps: float"] if "eps" in kernel.runtime_arguments else []
    parameters += [f"{name}: torch.dtype" for name in taken_dtypes(plan)]
    sums = [total.gradient for total in kernel.accumulations]
    gradients = (*kernel.gradients, *sums)
    parameters += [f"needs_{VARIABLES[g]}: bool" for g in gradients]
    like = VARIABLES[normed_rows(plan)]
    allocations = []
    for name in (VARIABLES[g] for g in kernel.gradients):
        made = f"{like}.new_empty({like}.shape) if needs_{name} else None"
        allocations.append(f"{name} = {made}")
    for name in (VARIABLES[g] for g in sums):
        made = f"_new_partials(dy_rows, programs) if needs_{name} else None"
        allocations.append(f"{name}_partial = {made}")
    types = ["torch.Tensor | None"] * len(gradients)
    return Function(
        opening=_opening(f"_{plan.name}_backward", parameters, types),
        rows=tuple(VARIABLES[t] for t in kernel.elements),
        columns=tuple(VARIABLES[t] for t in kernel.columns),
        alignment=_alignment(kernel),
        allocations=(*allocations, *_roundings(kernel, atoms)),
        lookup=lookup(plan, "backward"),
        tiles=tiles(plan.backward_branches),
        launches=_launches(plan.backward_branches, plan.backward_kernels),
        results=tuple(VARIABLES[g] for g in gradients),
        launched_if=_launched_if(plan, gradients),
        closing=tuple(
            f"{VARIABLES[g]} = _sum_partials({VARIABLES[g]}_partial, {dtype})"
            for g, dtype in _sum_dtypes(plan)
        ),
    )


def _opening(
    name: str, parameters: Sequence[str], types: Sequence[str]
) -> tuple[str, ...]:
    """The line or lines that begin a function."""
    returned = types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
    return laid_out(f"def {name}(", parameters, f") -> {returned}:")


def _launched_if(plan: NormPlan, gradients: Sequence[str]) -> str:
    """When the backward kernel has something to store."""
    handed_on = set(plan.adjoint.aliases.values()) & set(plan.adjoint.tensors)
    needs = [f"needs_{VARIABLES[g]}" for g in gradients]
    if not handed_on:  # then each call is for a gradient that the kernel makes
        return "n_rows > 0"
    wanted = needs[0] if len(needs) == 1 else f"({' or '.join(needs)})"
    return f"n_rows > 0 and {wanted}"


def dx_dtype(plan: NormPlan) -> Dtype:
    """The dtype that dx is made in: that of the rows which were normalized."""
    return plan.graph.dtypes[plan.graph.norm.source]


def normed_rows(plan: NormPlan) -> str:
    """A tensor of the backward kernel's that has the shape and the dtype of dx."""
    elements = plan.backward_kernels[0].elements
    saved = (t for t in elements if t not in plan.adjoint.tensors)
    return next(t for t in saved if plan.graph.dtypes[t] == dx_dtype(plan))


def saved_tensors(plan: NormPlan) -> tuple[str, ...]:
    """What the backward pass reads again, by variable."""
    kernel = plan.backward_kernels[0]
    rows = [VARIABLES[t] for t in kernel.elements if t not in plan.adjoint.tensors]
    return (*rows, *(VARIABLES[t] for t in kernel.columns), *kernel.saved)


def taken_dtypes(plan: NormPlan) -> tuple[str, ...]:
    """The dtypes that ``_NAME_backward`` needs of tensors which it is not given."""
    kernel = plan.backward_kernels[0]
    given = {*kernel.elements, *kernel.columns}
    needed = set[str]().union(*kernel.roundings.values())
    needed |= {owner for owner, _ in _owners(plan)}
    if dx_dtype(plan) == dtypes.of("x"):
        given.add("x")
    return tuple(
        f"{VARIABLES[t]}_dtype" for t in plan.tensors if t in needed and t not in given
    )


def _backward_atoms(plan: NormPlan) -> dict[str, str]:
    """The expression of each dtype atom in the backward function."""
    taken = taken_dtypes(plan)
    atoms = {}
    for t in plan.tensors:
        name = f"{VARIABLES[t]}_dtype"
        atoms[t] = name if name in taken else f"{VARIABLES[t]}.dtype"
    if "x_dtype" not in taken:
        atoms["x"] = f"{VARIABLES[normed_rows(plan)]}.dtype"
    return atoms


def _owners(plan: NormPlan) -> list[tuple[str, str]]:
    """(parameter, its gradient) of each summed gradient."""
    sums = (total.gradient for total in plan.backward_kernels[0].accumulations)
    return [(t, g) for g in sums for t in plan.adjoint.owners(g, LEARNED)]


def _sum_dtypes(plan: NormPlan) -> list[tuple[str, str]]:
    atoms = _backward_atoms(plan)
    return [(g, atoms[t]) for t, g in _owners(plan)]


def _output(
    plan: NormPlan, name: str, tensor: str, atoms: Mapping[str, str]
) -> list[str]:
    dtype = plan.graph.dtypes[tensor]
    if dtype == plan.graph.dtypes["x"]:
        return [f"{name} = x.new_empty(x.shape)"]
    lines, text = _promotion(f"{name}_dtype", dtype, atoms)
    return [*lines, f"{name} = x.new_empty(x.shape, dtype={text})"]


def _roundings(kernel: Kernel, atoms: Mapping[str, str]) -> list[str]:
    """The lines that find the dtypes which a kernel is told."""
    made = []
    for name, dtype in kernel.roundings.items():
        lines, text = _promotion(name.lower(), dtype, atoms)
        made += lines or [f"{name.lower()} = {text}"]
    return made


def _promotion(
    target: str, dtype: Dtype, atoms: Mapping[str, str]
) -> tuple[list[str], str]:
    """Lines that promote several dtypes into ``target``, and what it is called then."""
    ordered = (atom for atom in (*atoms, *dtypes.CONCRETE) if atom in dtype)
    parts = [dtypes.in_torch(dtypes.of(atom), atoms) for atom in ordered]
    lines: list[str] = []
    for other in parts[1:]:
        first = target if lines else parts[0]
        lines.append(f"{target} = torch.promote_types({first}, {other})")
    return lines, target if lines else parts[0]


def _launches(
    branches: Sequence[Branch],
    kernels: Sequence[Kernel],
) -> tuple[str, ...]:
    calls = [_call(kernel) for kernel in kernels]
    if len(calls) == 1:
        return calls[0]
    lines: list[str] = []
    for branch, call in zip(branches, calls, strict=True):
        test = f"if hidden_size <= {branch.largest}:"
        if lines:
            test = "else:" if branch.largest is None else f"el{test}"
        lines += [test, *(f"    {line}" for line in call)]
    return tuple(lines)


def _call(kernel: Kernel) -> tuple[str, ...]:
    arguments = [_value(name, kernel) for name in kernel.runtime_arguments]
    arguments.append("HIDDEN_SIZE=hidden_size")
    arguments += [f"{r}=_triton_dtype({r.lower()})" for r in kernel.roundings]
    arguments += ["ALIGNMENT=alignment", "**options"]
    return (
        f"{kernel.name}[(programs,)](",
        *(f"    {argument}," for argument in arguments),
        "    enable_fp_fusion=False,  # products are rounded, then added",
        ")",
    )


def _alignment(kernel: Kernel) -> str:
    """The call that tells how the inputs of a kernel are aligned."""
    read = [f"{VARIABLES[t]}_rows" for t in kernel.elements]
    read += [f"{VARIABLES[t]}_row" for t in kernel.columns]
    return f"_alignment({', '.join(read)})"


def _value(argument: str, kernel: Kernel) -> str:
    """What a run-time argument of a kernel is given."""
    if argument == "eps":
        return "float(eps)"
    if argument.endswith("_row_stride"):
        return f"{VARIABLES[argument.removesuffix('_row_stride')]}_rows.stride(0)"
    tensor = argument.removesuffix("_ptr")
    gradient = tensor.removesuffix("_partial")
    variable = VARIABLES.get(gradient, gradient) + tensor.removeprefix(gradient)
    suffixes = dict.fromkeys(kernel.elements, "_rows") | dict.fromkeys(
        kernel.columns, "_row"
    )
    return variable + suffixes.get(tensor, "")
