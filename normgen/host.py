"""The host side of a norm: allocations and launches, as finished lines.

Inputs come in the shape that they have in the call; what a kernel reads row by row is
turned to rows here, [n_rows, hidden_size], named NAME_rows.  Results are allocated in
the shape of x, contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normgen import dtypes
from normgen.dtypes import Dtype
from normgen.kernels import Kernel
from normgen.layout import WIDTH, laid_out
from normgen.naming import VARIABLES
from normgen.plan import Branch, NormPlan
from normgen.shapes import Shapes, shapes
from normgen.spaces import ROW
from normgen.tables import lookup, tiles


@dataclass(frozen=True)
class Function:
    """A function that allocates what a kernel writes, and launches it.

    ``views`` are lines that turn tensors to rows and name their sizes; ``closing`` are
    lines that follow the launch.
    """

    opening: tuple[str, ...]
    views: tuple[str, ...]
    is_empty: str
    alignment: tuple[str, ...]
    allocations: tuple[str, ...]
    lookup: tuple[str, ...]
    tiles: str
    launches: tuple[str, ...]
    results: tuple[str, ...]
    leading: str = "x"
    shared: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    launched_if: tuple[str, ...] = ()

    @property
    def return_statement(self) -> str:
        """Its return statement."""
        return f"return {', '.join(self.results)}".rstrip()


def forward_function(plan: NormPlan) -> Function:
    """``_NAME_forward``: the arguments -> results and statistics."""
    kernel, made = plan.forward_kernels[0], shapes(plan)
    atoms = {t: f"{VARIABLES[t]}.dtype" for t in plan.tensors}
    parameters = [f"{VARIABLES[t]}: torch.Tensor" for t in plan.tensors]
    parameters += ["eps: float"] if "eps" in plan.arguments else []
    parameters += ["keep_statistics: bool"] if kernel.saved_on_request else []
    statistic = f"x.new_empty({made.statistic}, dtype=torch.float32)"
    allocations = [
        line
        for t in plan.graph.results
        if t not in plan.graph.overwrites
        for line in _output(plan, VARIABLES[t], t, atoms)
    ]
    always = [t for t, _ in kernel.saved_always if t not in plan.graph.results]
    allocations += [f"{name} = {statistic}" for name in always]
    for name in kernel.saved_on_request:
        line = f"{name} = {statistic} if keep_statistics else None"
        allocations += _fitted(line, 4)
    overwritten = (VARIABLES[owner] for owner in plan.graph.overwrites.values())
    given = len(plan.graph.results) + len(always)
    types = ["torch.Tensor"] * given
    types += ["torch.Tensor | None"] * len(kernel.saved_on_request)
    return Function(
        opening=_opening(f"_{plan.name}_forward", parameters, types),
        views=made.views(kernel, "x"),
        is_empty=made.is_empty,
        alignment=made.alignment(kernel),
        allocations=(*allocations, *_roundings(kernel, atoms)),
        lookup=(*lookup(plan, "forward"), *made.division),
        tiles=tiles(plan.forward_branches),
        launches=_launches(plan, plan.forward_branches, plan.forward_kernels, 8),
        results=(
            *(VARIABLES[plan.graph.overwrites.get(t, t)] for t in plan.graph.results),
            *always,
            *kernel.saved_on_request,
        ),
        closing=tuple(
            f"torch.autograd.graph.increment_version({t})" for t in overwritten
        ),
    )


def backward_function(plan: NormPlan) -> Function:
    """``_NAME_backward``: incoming gradients and what was saved -> gradients."""
    kernel, made = plan.backward_kernels[0], shapes(plan)
    atoms = _backward_atoms(plan)
    inputs = [VARIABLES[t] for t in (*kernel.elements, *kernel.columns)]
    saved = [VARIABLES.get(t, t) for t, _ in kernel.saved]
    parameters = [f"{name}: torch.Tensor" for name in (*inputs, *saved)]
    parameters += ["eps: float"] if "eps" in kernel.runtime_arguments else []
    parameters += [f"{name}: torch.dtype" for name in taken_dtypes(plan)]
    sums = [total.gradient for total in kernel.accumulations]
    gradients = (*kernel.gradients, *sums)
    parameters += [f"needs_{VARIABLES[g]}: bool" for g in gradients]
    first = leading(plan)
    allocations: list[str] = []
    for g in kernel.gradients:
        allocations += _gradient(plan, g, atoms)
    for name in (VARIABLES[g] for g in sums):
        partials = made.partials(first)
        line = f"{name}_partial = {partials} if needs_{name} else None"
        allocations += _fitted(line, 4)
    types = ["torch.Tensor | None"] * len(gradients)
    return Function(
        opening=_opening(f"_{plan.name}_backward", parameters, types),
        views=(*made.views(kernel, first), *made.division_of_any),
        is_empty=made.is_empty,
        alignment=made.alignment(kernel),
        allocations=(*allocations, *_roundings(kernel, atoms)),
        lookup=lookup(plan, "backward"),
        tiles=tiles(plan.backward_branches),
        leading=first,
        shared=made.shared,
        launches=_launches(plan, plan.backward_branches, plan.backward_kernels, 12),
        results=tuple(VARIABLES[g] for g in gradients),
        launched_if=_launched_if(plan, gradients),
        closing=tuple(
            line
            for tensor, gradient in _owners(plan)
            for line in made.summed(gradient, tensor, atoms[tensor], first)
        ),
    )


def leading(plan: NormPlan) -> str:
    """The tensor whose shape the backward function goes by."""
    return VARIABLES[plan.backward_kernels[0].elements[0]]


def _opening(
    name: str, parameters: Sequence[str], types: Sequence[str]
) -> tuple[str, ...]:
    """The line or lines that begin a function."""
    returned = types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
    if len(returned) > WIDTH - len(") -> :"):
        returned = "tuple[torch.Tensor | None, ...]"
    return laid_out(f"def {name}(", parameters, f") -> {returned}:")


def _launched_if(plan: NormPlan, gradients: Sequence[str]) -> tuple[str, ...]:
    """The line or lines that ask if the backward kernel has something to store."""
    handed_on = set(plan.adjoint.aliases.values()) & set(plan.adjoint.tensors)
    needs = [f"needs_{VARIABLES[g]}" for g in gradients]
    if not handed_on:  # then each call is for a gradient that the kernel makes
        return (f"if {shapes(plan).is_filled}:",)
    wanted = needs[0] if len(needs) == 1 else f"({' or '.join(needs)})"
    line = f"if {shapes(plan).is_filled} and {wanted}:"
    if len(line) <= WIDTH - 8:
        return (line,)
    others = (f"    or {need}" for need in needs[1:])
    return (f"if {shapes(plan).is_filled} and (", f"    {needs[0]}", *others, "):")


def saved_tensors(plan: NormPlan) -> tuple[str, ...]:
    """What the backward pass reads again, by variable."""
    kernel, incoming = plan.backward_kernels[0], plan.adjoint.tensors
    rows = [VARIABLES[t] for t in kernel.elements if t not in incoming]
    statistics = [t for t, _ in kernel.saved if t not in incoming]
    return (*rows, *(VARIABLES[t] for t in kernel.columns), *statistics)


def like(plan: NormPlan, dtype: Dtype) -> str | None:
    """A tensor of the backward kernel's that has the shape of x, and this dtype."""
    elements = plan.backward_kernels[0].elements
    saved = (t for t in elements if t not in plan.adjoint.tensors)
    return next((t for t in saved if plan.graph.dtypes[t] == dtype), None)


def taken_dtypes(plan: NormPlan) -> tuple[str, ...]:
    """The dtypes that ``_NAME_backward`` needs of tensors which it is not given."""
    kernel = plan.backward_kernels[0]
    given = {*kernel.elements, *kernel.columns}
    needed = set[str]().union(*kernel.roundings.values())
    needed |= {owner for owner, _ in _owners(plan)}
    for gradient in kernel.gradients:
        dtype = plan.gradient_dtype(gradient)
        needed |= set() if like(plan, dtype) else dtype
    if like(plan, dtypes.of("x")):
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
    given = like(plan, dtypes.of("x"))
    if given is not None:
        atoms["x"] = f"{VARIABLES[given]}.dtype"
    return atoms


def _owners(plan: NormPlan) -> list[tuple[str, str]]:
    """(tensor, its gradient) of each gradient that is summed over rows."""
    sums = (total.gradient for total in plan.backward_kernels[0].accumulations)
    return [(t, g) for g in sums for t in plan.adjoint.owners(g, plan.tensors)]


def _gradient(plan: NormPlan, gradient: str, atoms: Mapping[str, str]) -> list[str]:
    """The lines that allocate a gradient of a tensor like x."""
    name, dtype = VARIABLES[gradient], plan.gradient_dtype(gradient)
    same = like(plan, dtype)
    if same is not None:
        made = f"{VARIABLES[same]}.new_empty({VARIABLES[same]}.shape)"
    else:
        first = leading(plan)
        lines, text = _promotion(f"{name}_dtype", dtype, atoms)
        assert not lines, (gradient, dtype)  # a tensor's own dtype is one atom
        made = f"{first}.new_empty({first}.shape, dtype={text})"
    return _fitted(f"{name} = {made} if needs_{name} else None", 4)


def _output(
    plan: NormPlan, name: str, tensor: str, atoms: Mapping[str, str]
) -> list[str]:
    dtype, shape = plan.graph.dtypes[tensor], "x.shape"
    if plan.graph.spaces[tensor] == ROW:
        shape = shapes(plan).factor
    if dtype == plan.graph.dtypes["x"]:
        return [f"{name} = x.new_empty({shape})"]
    lines, text = _promotion(f"{name}_dtype", dtype, atoms)
    return [*lines, f"{name} = x.new_empty({shape}, dtype={text})"]


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


def _fitted(line: str, indent: int) -> list[str]:
    """A conditional assignment, in parentheses where it is too long for a line."""
    if indent + len(line) <= WIDTH:
        return [line]
    target, value = line.split(" = ", 1)
    if indent + 4 + len(value) <= WIDTH:
        return [f"{target} = (", f"    {value}", ")"]
    made, rest = value.split(" if ", 1)
    condition, other = rest.split(" else ", 1)
    lines = (made, f"if {condition}", f"else {other}")
    return [f"{target} = (", *(f"    {line}" for line in lines), ")"]


def _launches(
    plan: NormPlan, branches: Sequence[Branch], kernels: Sequence[Kernel], indent: int
) -> tuple[str, ...]:
    if len(kernels) == 1:
        return _call(plan, kernels[0], indent)
    calls = [_call(plan, kernel, indent + 4) for kernel in kernels]
    lines: list[str] = []
    for branch, call in zip(branches, calls, strict=True):
        test = f"if hidden_size <= {branch.largest}:"
        if lines:
            test = "else:" if branch.largest is None else f"el{test}"
        lines += [test, *(f"    {line}" for line in call)]
    return tuple(lines)


def _call(plan: NormPlan, kernel: Kernel, indent: int) -> tuple[str, ...]:
    made = shapes(plan)
    arguments = [_value(made, name, kernel) for name in kernel.runtime_arguments]
    arguments += made.constants()
    arguments += [f"{r}=_triton_dtype({r.lower()})" for r in kernel.roundings]
    arguments += ["ALIGNMENT=alignment", "**options"]
    opening: tuple[str, ...] = (f"{kernel.name}[{made.launch_grid}](",)
    if len(opening[0]) > WIDTH - indent:
        opening = (f"{kernel.name}[", f"    {made.launch_grid}", "](")
    return (
        *opening,
        *(f"    {argument}," for argument in arguments),
        "    enable_fp_fusion=False,  # products are rounded, then added",
        ")",
    )


def _value(made: Shapes, argument: str, kernel: Kernel) -> str:
    """What a run-time argument of a kernel is given."""
    if argument == "eps":
        return "float(eps)"
    if argument.endswith("_row_stride"):
        return f"{made.view(argument.removesuffix('_row_stride'))}.stride(0)"
    tensor = argument.removesuffix("_ptr")
    given = (*kernel.elements, *kernel.columns, *kernel.read_per_row)
    if tensor in given and tensor in VARIABLES:
        return made.view(tensor)
    gradient = tensor.removesuffix("_partial")
    return VARIABLES.get(gradient, gradient) + tensor.removeprefix(gradient)
