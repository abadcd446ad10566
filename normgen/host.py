"""The host side of a norm: allocations and launches, as finished lines.

The functions described here work on rows: every tensor but the parameters is
[n_rows, hidden_size].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normgen import dtypes
from normgen.dtypes import Dtype
from normgen.eager import HOST
from normgen.kernels import Kernel
from normgen.plan import RESULTS, Branch, NormPlan
from normgen.tables import lookup, tiles

#: kernel name of a tensor -> its variable on the host
VARIABLES = {
    **HOST,
    **RESULTS,
    **{f"d{t}": f"d{name}" for t, name in {**HOST, **RESULTS}.items()},
    **{f"d{t}_partial": f"d{HOST[t]}_partial" for t in ("w", "b")},
}


@dataclass(frozen=True)
class Function:
    """A function that allocates what a kernel writes, and launches it."""

    parameters: tuple[str, ...]
    allocations: tuple[str, ...]
    lookup: tuple[str, ...]
    tiles: str
    launches: tuple[str, ...]
    results: tuple[str, ...]
    sums: tuple[str, ...] = ()

    @property
    def annotation(self) -> str:
        """The type of what it returns."""
        types = {0: "None", 1: "torch.Tensor"}
        return types.get(len(self.results), "tuple[torch.Tensor | None, ...]")

    @property
    def return_statement(self) -> str:
        """Its return statement."""
        return " ".join(
            ["return", *([", ".join(self.results)] if self.results else [])]
        )


def forward_function(plan: NormPlan) -> Function:
    """``_NAME_forward``: rows and parameters -> results and statistics."""
    kernel = plan.forward_kernels[0]
    atoms = {t: f"{HOST[t]}.dtype" for t in plan.tensors}
    parameters = [f"{HOST[t]}: torch.Tensor" for t in plan.tensors]
    parameters += ["eps: float"] if "eps" in plan.arguments else []
    parameters += ["keep_statistics: bool"] if kernel.saved_on_request else []
    statistic = "x.new_empty(n_rows, dtype=torch.float32)"
    return Function(
        parameters=tuple(parameters),
        allocations=(
            *(line for t in kernel.outputs for line in _output(plan, t, atoms)),
            *(f"{name} = {statistic}" for name in kernel.saved_always),
            *(
                f"{name} = {statistic} if keep_statistics else None"
                for name in kernel.saved_on_request
            ),
            *_roundings(kernel, atoms),
        ),
        lookup=lookup(plan, "forward"),
        tiles=tiles(plan.forward_branches),
        launches=_launches(plan.forward_branches, plan.forward_kernels, "False"),
        results=(
            *(VARIABLES[t] for t in kernel.outputs),
            *kernel.saved_always,
            *kernel.saved_on_request,
        ),
    )


def backward_function(plan: NormPlan) -> Function:
    """``_NAME_backward``: incoming gradients and what was saved -> gradients."""
    kernel = plan.backward_kernels[0]
    inputs = [VARIABLES[t] for t in (*kernel.elements, *kernel.columns)]
    parameters = [f"{name}: torch.Tensor" for name in (*inputs, *kernel.saved)]
    parameters += ["eps: float"] if "eps" in kernel.runtime_arguments else []
    parameters += [f"{name}: torch.dtype" for name in remembered_dtypes(plan)]
    sums = [total.gradient for total in kernel.accumulations]
    gradients = (*kernel.gradients, *sums)
    parameters += [f"needs_{VARIABLES[g]}: bool" for g in gradients]
    like = VARIABLES[kernel.rows]
    return Function(
        parameters=tuple(parameters),
        allocations=(
            f"dx = {like}.new_empty({like}.shape) if needs_dx else None",
            *(
                f"{VARIABLES[g]}_partial = _partial_sums({like}, programs) "
                f"if needs_{VARIABLES[g]} else None"
                for g in sums
            ),
            *_roundings(kernel, _backward_atoms(plan)),
        ),
        lookup=lookup(plan, "backward"),
        tiles=tiles(plan.backward_branches),
        launches=_launches(plan.backward_branches, plan.backward_kernels, "True"),
        results=tuple(VARIABLES[g] for g in gradients),
        sums=tuple(
            f"{name} = _sum_partials({name}_partial, {dtype})"
            for name, dtype in _sum_dtypes(plan)
        ),
    )


def saved_tensors(plan: NormPlan) -> tuple[str, ...]:
    """What the backward pass reads again, by variable."""
    kernel = plan.backward_kernels[0]
    incoming = plan.adjoint.tensors
    rows = [VARIABLES[t] for t in kernel.elements if t not in incoming]
    return (*rows, *(VARIABLES[t] for t in kernel.columns), *kernel.saved)


def remembered_dtypes(plan: NormPlan) -> tuple[str, ...]:
    """Dtypes that the backward pass needs of tensors which it does not read."""
    kernel = plan.backward_kernels[0]
    read = (*kernel.elements, *kernel.columns)
    needed = set[str]().union(*kernel.roundings.values()) & {"x"}
    rows = plan.graph.dtypes[kernel.rows]
    x = plan.graph.dtypes["x"]
    names = []
    if rows != x or (needed and rows != dtypes.of("x")):
        names.append("x_dtype")
    names += [
        f"{HOST[t]}_dtype" for t in ("w", "b") if t in plan.tensors and t not in read
    ]
    return tuple(names)


def _backward_atoms(plan: NormPlan) -> dict[str, str]:
    remembered = remembered_dtypes(plan)
    rows = f"{VARIABLES[plan.backward_kernels[0].rows]}.dtype"
    atoms = {"x": "x_dtype" if "x_dtype" in remembered else rows}
    for t in ("w", "b"):
        own = f"{HOST[t]}_dtype"
        atoms[t] = own if own in remembered else f"{HOST[t]}.dtype"
    return atoms


def _sum_dtypes(plan: NormPlan) -> tuple[tuple[str, str], ...]:
    """(variable, dtype expression) of each summed gradient."""
    atoms = _backward_atoms(plan)
    return tuple(
        (VARIABLES[total.gradient], atoms[total.gradient[1:]])
        for total in plan.backward_kernels[0].accumulations
    )


def _output(plan: NormPlan, tensor: str, atoms: Mapping[str, str]) -> list[str]:
    dtype, name = plan.graph.dtypes[tensor], VARIABLES[tensor]
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
    parts = [dtypes.in_torch(dtypes.of(atom), atoms) for atom in atoms if atom in dtype]
    parts = parts or [dtypes.in_torch(dtype, atoms)]
    lines: list[str] = []
    for other in parts[1:]:
        first = target if lines else parts[0]
        lines.append(f"{target} = torch.promote_types({first}, {other})")
    return lines, target if lines else parts[0]


def _launches(
    branches: Sequence[Branch],
    kernels: Sequence[Kernel],
    fp_fusion: str,
) -> tuple[str, ...]:
    calls = [_call(kernel, fp_fusion) for kernel in kernels]
    if len(calls) == 1:
        return calls[0]
    lines: list[str] = []
    for branch, call in zip(branches, calls, strict=True):
        test = f"if hidden_size <= {branch.largest}:"
        if lines:
            test = "else:" if branch.largest is None else f"el{test}"
        lines += [test, *(f"    {line}" for line in call)]
    return tuple(lines)


def _call(kernel: Kernel, fp_fusion: str) -> tuple[str, ...]:
    rows = [VARIABLES[t] for t in kernel.elements]
    columns = [VARIABLES[t] for t in kernel.columns]
    arguments = [_value(name) for name in kernel.runtime_arguments]
    arguments.append("HIDDEN_SIZE=hidden_size")
    arguments += [f"{r}=_triton_dtype({r.lower()})" for r in kernel.roundings]
    arguments.append(f"ALIGNMENT=_alignment({_tuple(rows)}, {_tuple(columns)})")
    arguments += ["**options", f"enable_fp_fusion={fp_fusion}"]
    return (f"{kernel.name}[(programs,)](", *(f"    {a}," for a in arguments), ")")


def _value(argument: str) -> str:
    """What a run-time argument of a kernel is given."""
    if argument.endswith("_row_stride"):
        return f"{VARIABLES[argument.removesuffix('_row_stride')]}.stride(0)"
    name = argument.removesuffix("_ptr")
    return VARIABLES.get(name, name)


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
