"""What users call: the function with its checks, and the nn.Module."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.dtypes import Dtype
from normgen.host import forward_function
from normgen.naming import ARGUMENTS, LEARNED
from normgen.plan import NormPlan
from normgen.spec import DTYPES, LARGEST_REGISTER_ROW, MAX_HIDDEN_SIZE


@dataclass(frozen=True)
class Length:
    """Which row lengths are right: as tests of wrong ones, and in words.

    ``literal`` says what was expected, and ``shape`` the same as a shape, both as
    Python literals; ``words`` is for prose.
    """

    x_is_wrong: str
    hidden_size_is_wrong: str
    literal: str
    shape: str
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
    inputs: tuple[str, ...]
    call: str
    representation: str


def length(plan: NormPlan) -> Length:
    """The row lengths that a norm takes."""
    lengths = plan.norm.lengths
    largest = LARGEST_REGISTER_ROW.get(plan.norm.strategy, MAX_HIDDEN_SIZE)
    wrong, words, listed = f"not 1 <= {{}} <= {largest}", f"1 to {largest}", ""
    if len(lengths) == 1:
        wrong, words = f"{{}} != {lengths[0]}", str(lengths[0])
    elif lengths:
        table = f"_{plan.name.upper()}_FORWARD"
        *most, last = map(str, lengths)
        wrong, words = f"{{}} not in {table}", f"{', '.join(most)} or {last}"
        listed = f"one of {{list({table})}}"
    prefix = "f" if listed else ""
    return Length(
        x_is_wrong=f"x.dim() == 0 or {wrong.format('x.shape[-1]')}",
        hidden_size_is_wrong=wrong.format("hidden_size"),
        literal=f'{prefix}"{listed or words}"',
        shape=f'{prefix}"[..., {listed or words}]"',
        words=words,
    )


def declarations(plan: NormPlan) -> tuple[str, ...]:
    """The arguments of the function, with their types."""
    return tuple(map(_declaration, plan.arguments))


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
        lines.append('_check_in_place("residual", residual)')
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


def gradient_needed(plan: NormPlan) -> tuple[str, ...]:
    """The test for the way through autograd, if there is one."""
    if not plan.norm.backward:
        return ()
    return (f"_needs_gradient({', '.join(ARGUMENTS[t] for t in plan.tensors)})",)


def eager(plan: NormPlan) -> tuple[str, ...]:
    """The last lines of the function: the way without autograd."""
    made = forward_function(plan).results
    call = f"_{plan.name}_forward"
    arguments = [f"    {name}," for name in plan.arguments]
    if plan.norm.statistics_on_request:
        arguments.append("    keep_statistics=False,")
    if len(made) == len(plan.results):
        return (f"return {call}(", *arguments, ")")
    used = [name if name in plan.results else "_" for name in made]
    returned = f"return {', '.join(plan.results)}"
    return (f"{', '.join(used)} = {call}(", *arguments, ")", returned)


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
        attributes=("self.eps = eps",) if has_eps else (),
        parameters=tuple(
            (name, f"torch.nn.Parameter({name}{trained})") for name in parameters
        ),
        initialization=tuple(
            f"torch.nn.init.constant_(self.{name}, {starts[name]})"
            for name in parameters
        ),
        inputs=tuple(map(_declaration, inputs)),
        call=", ".join(own.get(a, a) for a in plan.arguments),
        representation=f'f"{{self.hidden_size}}, eps={eps}"',
    )
