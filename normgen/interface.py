"""What users call: the function with its checks, and the nn.Module."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.dtypes import Dtype
from normgen.fields import (
    DTYPES,
    LARGEST_CHANNEL_ROW,
    LARGEST_REGISTER_ROW,
    MAX_GROUPS,
    MAX_HIDDEN_SIZE,
)
from normgen.host import forward_function
from normgen.layout import WIDTH, laid_out
from normgen.naming import ARGUMENTS
from normgen.plan import NormPlan
from normgen.spaces import COLUMN, ELEMENT, GROUP, HEAD, SAMPLE


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
    """The facts of the nn.Module.

    ``checked`` are sizes that must be integers; ``parameters`` are (name, shape,
    expression) triples.
    """

    docstring: str
    declarations: tuple[str, ...]
    dtype: str
    attributes: tuple[str, ...]
    checked: tuple[str, ...]
    parameters: tuple[tuple[str, str, str], ...]
    initialization: tuple[str, ...]
    forward: tuple[str, ...]
    forward_docstring: str
    call: tuple[str, ...]
    representation: str


def length(plan: NormPlan) -> Length:
    """The row lengths that a norm takes."""
    lengths, table = plan.norm.lengths, f"_{plan.name.upper()}_FORWARD"
    if plan.norm.group_size is not None:
        table = f"_{plan.name.upper()}_LENGTHS"
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
        if plan.norm.axis == "channel":
            largest = LARGEST_CHANNEL_ROW
        limit = str(largest) if largest else f"2**{MAX_HIDDEN_SIZE.bit_length() - 1}"
        wrong, words = f"not 1 <= {{}} <= {limit}", f"1 to {limit}"
        expected = words
    shape = f"x: expected shape {x_shape(plan, expected)}"
    size = f"hidden_size: expected {expected}"
    return Length(
        x_is_wrong=f"{_too_flat(plan)} or {wrong.format(columns(plan))}",
        x_error=(*first, *_raised(shape, "{list(x.shape)}", 8)),
        hidden_size_is_wrong=wrong.format("hidden_size"),
        hidden_size_error=(*first, *_raised(size, "{hidden_size}", 12)),
        words=words,
    )


def _raised(expected: str, got: str, indent: int) -> tuple[str, ...]:
    """The lines that raise a ValueError; its text in two parts where it is long."""
    message = f'f"{expected}, got {got}"'
    if len(message) <= WIDTH - indent - 4:
        return laid_out("raise ValueError(", (message,), ")", indent)
    parts = (f'    f"{expected}, "', f'    f"got {got}"')
    return ("raise ValueError(", *parts, ")")


def lengths(plan: NormPlan) -> tuple[str, ...]:
    """The row lengths of a norm of groups, whose launch table goes by groups."""
    if plan.norm.group_size is None or len(plan.norm.lengths) == 1:
        return ()
    items = tuple(map(str, sorted(plan.norm.lengths)))
    line = f"_{plan.name.upper()}_LENGTHS = [{', '.join(items)}]"
    if len(line) <= WIDTH:
        return (line,)
    opening, _ = line.split("[")
    return (f"{opening}[", *(f"    {item}," for item in items), "]")


def columns(plan: NormPlan) -> str:
    """The number of columns of x."""
    return "x.shape[1]" if plan.norm.axis == "channel" else "x.shape[-1]"


def x_shape(plan: NormPlan, row: str) -> str:
    """The shape of x, with rows of so many columns."""
    if plan.norm.axis == "channel":
        return f"[samples, {row}, ...]"
    spaces = set(plan.graph.tensors.values())
    samples = "samples, " if SAMPLE in spaces else ""
    heads = ", heads" if HEAD in spaces else ""
    return f"[{samples}...{heads}, {row}]"


def _too_flat(plan: NormPlan) -> str:
    spaces = set(plan.graph.tensors.values())
    least = 1 + (SAMPLE in spaces or plan.norm.axis == "channel") + (HEAD in spaces)
    return "x.dim() == 0" if least == 1 else f"x.dim() < {least}"


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
        if plan.graph.tensors[t].is_strided and t not in overwritten
    }
    given = [f"{a}.contiguous()" if a in rows else a for a in plan.arguments]
    return laid_out(f"return {plan.name}_reference(", given, ")", 8)


def autograd_call(plan: NormPlan) -> tuple[str, ...]:
    """The way through autograd, if there is one."""
    if not plan.norm.backward:
        return ()
    call = f"return _{plan.class_name}Function.apply("
    tensors = tuple(ARGUMENTS[t] for t in plan.tensors)
    lines = laid_out(call, plan.arguments, ")", 8)
    condition = laid_out("if _needs_gradient(", tensors, "):", 4)
    return (*condition, *(f"    {line}" for line in lines))


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
    lines: list[str] = []
    if HEAD in plan.graph.tensors.values():
        expected = f"x: expected 1 to {MAX_GROUPS} heads, got {{x.shape[-2]}}"
        lines.append(f"if not 1 <= x.shape[-2] <= {MAX_GROUPS}:")
        raised = laid_out("raise ValueError(", (f'f"{expected}"',), ")", 8)
        lines += [f"    {line}" for line in raised]
    for t in plan.tensors[1:]:
        name, space = ARGUMENTS[t], plan.graph.tensors[t]
        if space == SAMPLE:
            call = f"{name} = _per_sample("
            lines += laid_out(call, (name, _wide_shape(plan)), ")", 4)
        allowed = _allowed(plan.graph.dtypes[t], x)
        items = (f'"{name}"', name, allowed, _shape(plan, t), "x")
        lines += laid_out("_check_operand(", items, ")", 4)
    if plan.norm.residual_in_place:
        read = [ARGUMENTS[t] for t in plan.tensors if ARGUMENTS[t] != "residual"]
        given = ('"residual"', "residual", *(f"{name}={name}" for name in read))
        lines += laid_out("_check_in_place(", given, ")", 4)
    if "eps" in plan.arguments:
        lines.append("_check_eps(eps)")
    if not plan.norm.backward:
        every = tuple(f"{ARGUMENTS[t]}={ARGUMENTS[t]}" for t in plan.tensors)
        lines += laid_out("_check_no_gradient(", every, ")", 4)
    return tuple(lines)


def _wide_shape(plan: NormPlan) -> str:
    """The shape with which a tensor of one vector a sample broadcasts against x."""
    ones = "*[1] * (x.dim() - 2)"
    if plan.norm.axis == "channel":
        return f"(*x.shape[:2], {ones})"
    return f"(x.shape[0], {ones}, x.shape[-1])"


def _shape(plan: NormPlan, tensor: str) -> str:
    """The shape that a tensor beside x must have."""
    channel = plan.norm.axis == "channel"
    return {
        ELEMENT: "x.shape",
        COLUMN: "x.shape[1:2]" if channel else "x.shape[-1:]",
        HEAD: "x.shape[-2:]",
        GROUP: f"({plan.norm.group_size},)",
        SAMPLE: "x.shape[:2]" if channel else "(x.shape[0], x.shape[-1])",
    }[plan.graph.tensors[tensor]]


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


#: lines that check and keep what a module is made with
_EPS = ("_check_eps(eps)", "self.eps = eps")
_HEADS = (
    "if heads < 1:",
    '    raise ValueError(f"heads: expected at least 1, got {heads}")',
    "self.heads = heads",
)


def module(plan: NormPlan) -> Module:
    """The facts of the nn.Module."""
    affine = plan.norm.affine
    has_eps = "eps" in plan.arguments
    parameters = tuple(ARGUMENTS[t] for t in plan.learned)
    inputs = tuple(ARGUMENTS[t] for t in plan.tensors if t not in plan.learned)
    neutral = 1.0 - affine.weight_offset
    starts = {"weight": neutral, "weight2": neutral, "branch_scale": 1.0}
    heads = HEAD in plan.graph.tensors.values()
    sizes = ("heads", "hidden_size") if heads else ("hidden_size",)
    fixed = affine.dtype in DTYPES
    own = {name: f"self.{name}" for name in (*parameters, "eps")}
    trained = "" if plan.norm.backward else ", requires_grad=False"
    only = plan.norm.lengths if len(plan.norm.lengths) == 1 and not has_eps else ()
    eps = "{self.eps}" if has_eps else repr(plan.norm.eps)
    repeated = "{self.heads}, " if heads else ""
    shown = "" if plan.norm.eps_placement == "none" else f", eps={eps}"
    return Module(
        docstring=f"{plan.name} as a module, with {_counted(parameters)}.",
        declarations=(
            *(["heads: int"] if heads else []),
            "hidden_size: int" + "".join(f" = {one}" for one in only),
            *(["eps: float"] if has_eps else []),
        ),
        dtype=f"torch.{affine.dtype}" if fixed and parameters else "None",
        attributes=(*(_HEADS if heads else ()), *(_EPS if has_eps else ())),
        checked=sizes,
        parameters=tuple(
            (
                ARGUMENTS[t],
                _parameter_shape(plan, t),
                f"torch.nn.Parameter({ARGUMENTS[t]}{trained})",
            )
            for t in plan.learned
        ),
        initialization=tuple(
            f"torch.nn.init.constant_(self.{name}, {starts.get(name, 0.0)})"
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
        representation=f'f"{repeated}{{self.hidden_size}}{shown}"',
    )


def _counted(parameters: tuple[str, ...]) -> str:
    if len(parameters) > 2:
        return f"{len(parameters)} parameters"
    return " and ".join(parameters) or "no parameters"


def _parameter_shape(plan: NormPlan, tensor: str) -> str:
    """The shape of a parameter, as torch.empty takes it."""
    named = {HEAD: "heads, hidden_size", GROUP: str(plan.norm.group_size)}
    return named.get(plan.graph.tensors[tensor], "hidden_size")
