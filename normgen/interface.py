"""What users call: the function with its checks, and the nn.Module."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.dtypes import Dtype
from normgen.host import forward_function
from normgen.layout import laid_out
from normgen.naming import ARGUMENTS, LEARNED
from normgen.plan import NormPlan
from normgen.spec import DTYPES, LARGEST_REGISTER_ROW, MAX_HIDDEN_SIZE


@dataclass(frozen=True)
class Length:
    """Which row lengths are right: tests of wrong ones, what is raised, and words."""

    x_is_wrong: str
    x_error: tuple[str, ...]
    hidden_size_is_wrong: str
    hidden_size_error: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Module:
    """The facts of the nn.Module; ``parameters`` are (name, expression) pairs."""

    docstring: str
    declarations: tuple[str, ...]
    dtype: str
    attributes: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    initialization: tuple[str, ...]
    forward: tuple[str, ...]
    forward_docstring: str
    call: tuple[str, ...]
    representation: str


def length(plan: NormPlan) -> Length:
    """The row lengths that a norm takes."""
    lengths, table = plan.norm.lengths, f"_{plan.name.upper()}_FORWARD"
    first: tuple[str, ...] = ()
    if len(lengths) == 1:
        wrong, words = f"{{}} != {lengths[0]}", str(lengths[0])
        expected = words
    elif lengths:
        *most, last = map(str, lengths)
        wrong, words = f"{{}} not in {table}", f"{', '.join(most)} or {last}"
        first, expected = (f"lengths = list({table})",), "one of {lengths}"
    else:
        largest = LARGEST_REGISTER_ROW.get(plan.norm.strategy)
        limit = str(largest) if largest else f"2**{MAX_HIDDEN_SIZE.bit_length() - 1}"
        wrong, words = f"not 1 <= {{}} <= {limit}", f"1 to {limit}"
        expected = words
    shape = f"x: expected shape [..., {expected}], got {{list(x.shape)}}"
    size = f"hidden_size: expected {expected}, got {{hidden_size}}"
    return Length(
        x_is_wrong=f"x.dim() == 0 or {wrong.format('x.shape[-1]')}",
        x_error=(*first, *laid_out("raise ValueError(", (f'f"{shape}"',), ")", 8)),
        hidden_size_is_wrong=wrong.format("hidden_size"),
        hidden_size_error=(
            *first,
            *laid_out("raise ValueError(", (f'f"{size}"',), ")", 12),
        ),
        words=words,
    )


def opening(plan: NormPlan, name: str) -> tuple[str, ...]:
    """The line or lines that begin the function or its reference."""
    declared = tuple(map(_declaration, plan.arguments))
    return laid_out(f"def {name}(", declared, f") -> {returns(plan)}:")


def reference_call(plan: NormPlan) -> tuple[str, ...]:
    """The way of tensors that no kernel runs on; the results are contiguous too."""
    overwritten = plan.graph.overwrites.values()
    rows = {
        ARGUMENTS[t]
        for t in plan.tensors
        if plan.graph.tensors[t] == "element" and t not in overwritten
    }
    given = [f"{a}.contiguous()" if a in rows else a for a in plan.arguments]
    return laid_out(f"return {plan.name}_reference(", given, ")", 8)


def autograd_call(plan: NormPlan) -> tuple[str, ...]:
    """The way through autograd, if there is one."""
    if not plan.norm.backward:
        return ()
    call = f"return _{plan.class_name}Function.apply("
    tensors = ", ".join(ARGUMENTS[t] for t in plan.tensors)
    lines = laid_out(call, plan.arguments, ")", 8)
    return (f"if _needs_gradient({tensors}):", *(f"    {line}" for line in lines))


def _declaration(name: str) -> str:
    return f"{name}: {'float' if name == 'eps' else 'torch.Tensor'}"


def returns(plan: NormPlan) -> str:
    """The type of what the function returns."""
    if len(plan.results) == 1:
        return "torch.Tensor"
    return f"tuple[{', '.join(['torch.Tensor'] * len(plan.results))}]"


def checks(plan: NormPlan) -> tuple[str, ...]:
    """The lines that check every argument but x."""
    x = plan.graph.dtypes["x"]
    lines = []
    for t in plan.tensors[1:]:
        shape = "x.shape" if plan.graph.tensors[t] == "element" else "x.shape[-1:]"
        allowed = _allowed(plan.graph.dtypes[t], x)
        lines.append(
            f'_check_operand("{ARGUMENTS[t]}", {ARGUMENTS[t]}, {allowed}, {shape}, x)'
        )
    if plan.norm.residual_in_place:
        read = ", ".join(f"{ARGUMENTS[t]}={ARGUMENTS[t]}" for t in plan.tensors[:-1])
        lines.append(f'_check_in_place("residual", residual, {read})')
    if "eps" in plan.arguments:
        lines.append("_check_eps(eps)")
    if not plan.norm.backward:
        listed = ", ".join(f"{ARGUMENTS[t]}={ARGUMENTS[t]}" for t in plan.tensors)
        lines.append(f"_check_no_gradient({listed})")
    return tuple(lines)


def x_dtypes(plan: NormPlan) -> str:
    """The tuple of dtypes that x may have."""
    names = plan.norm.dtype
    if set(names) == set(DTYPES):
        return "_FLOATS"
    return f"({', '.join(f'torch.{n}' for n in names)}{',' if len(names) == 1 else ''})"


def _allowed(dtype: Dtype, x: Dtype) -> str:
    """The dtypes that a tensor of this symbolic dtype may have."""
    if dtype == x:
        return "(x.dtype,)"
    (atom,) = dtype
    return "_FLOATS" if atom in ARGUMENTS else f"(torch.{atom},)"


def eager(plan: NormPlan) -> tuple[str, ...]:
    """The last lines of the function: the way without autograd."""
    made = forward_function(plan).results
    keep = ("keep_statistics=False",) if plan.norm.statistics_on_request else ()
    call, arguments = f"_{plan.name}_forward(", (*plan.arguments, *keep)
    if len(made) == len(plan.results):
        return laid_out(f"return {call}", arguments, ")", 4)
    used = [name if name in plan.results else "_" for name in made]
    return (
        *laid_out(f"{', '.join(used)} = {call}", arguments, ")", 4),
        f"return {', '.join(plan.results)}",
    )


def module(plan: NormPlan) -> Module:
    """The facts of the nn.Module."""
    affine = plan.norm.affine
    has_eps = "eps" in plan.arguments
    parameters = tuple(ARGUMENTS[t] for t in plan.tensors if t in LEARNED)
    inputs = tuple(ARGUMENTS[t] for t in plan.tensors if t not in LEARNED)
    starts = {"weight": 1.0 - affine.weight_offset, "bias": 0.0}
    fixed = affine.dtype in DTYPES
    own = {name: f"self.{name}" for name in (*parameters, "eps")}
    trained = "" if plan.norm.backward else ", requires_grad=False"
    only = plan.norm.lengths if len(plan.norm.lengths) == 1 and not has_eps else ()
    eps = "{self.eps}" if has_eps else repr(plan.norm.eps)
    return Module(
        docstring=f"{plan.name} as a module, with "
        f"{' and '.join(parameters) or 'no parameters'}.",
        declarations=(
            "hidden_size: int" + "".join(f" = {one}" for one in only),
            *(["eps: float"] if has_eps else []),
        ),
        dtype=f"torch.{affine.dtype}" if fixed and parameters else "None",
        attributes=("_check_eps(eps)", "self.eps = eps") if has_eps else (),
        parameters=tuple(
            (name, f"torch.nn.Parameter({name}{trained})") for name in parameters
        ),
        initialization=tuple(
            f"torch.nn.init.constant_(self.{name}, {starts[name]})"
            for name in parameters
        ),
        forward=laid_out(
            "def forward(",
            ("self", *map(_declaration, inputs)),
            f") -> {returns(plan)}:",
            4,
        ),
        forward_docstring=f"Calls {plan.name}"
        + (" with the module's parameters." if parameters else "."),
        call=laid_out(
            f"return {plan.name}(", [own.get(a, a) for a in plan.arguments], ")", 8
        ),
        representation=f'f"{{self.hidden_size}}, eps={eps}"',
    )
