"""What users call: the function with its checks, and the nn.Module."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.dtypes import Dtype
from normgen.eager import HOST
from normgen.forward import overwritten
from normgen.host import VARIABLES, forward_function
from normgen.plan import NormPlan
from normgen.spec import LARGEST_REGISTER_ROW, MAX_HIDDEN_SIZE


@dataclass(frozen=True)
class Length:
    """Which row lengths are right.

    ``wrong`` is the test of wrong ones; ``literal`` says what was expected, and
    ``shape`` the same as a shape, both as Python literals; ``words`` is for prose.
    """

    wrong: str
    words: str
    default: str
    literal: str
    shape: str


@dataclass(frozen=True)
class Module:
    """The facts of the nn.Module."""

    declarations: tuple[str, ...]
    dtype: str
    attributes: tuple[str, ...]
    parameters: tuple[str, ...]
    trains: str
    initialization: tuple[str, ...]
    inputs: tuple[str, ...]
    call: str
    representation: str


def length(plan: NormPlan) -> Length:
    """The row lengths that a norm takes."""
    lengths = plan.norm.lengths
    if len(lengths) == 1:
        one = str(lengths[0])
        return Length(f"!= {one}", one, f" = {one}", f'"{one}"', f'"[..., {one}]"')
    if lengths:
        *most, last = map(str, lengths)
        table = f"_{plan.name.upper()}_FORWARD"
        listed = f"one of {{list({table})}}"
        return Length(
            wrong=f"not in {table}",
            words=f"{', '.join(most)} or {last}",
            default="",
            literal=f'f"{listed}"',
            shape=f'f"[..., {listed}]"',
        )
    largest = LARGEST_REGISTER_ROW.get(plan.norm.strategy, MAX_HIDDEN_SIZE)
    words = f"1 to {largest}"
    wrong = f"not in range(1, {largest + 1})"
    return Length(wrong, words, "", f'"{words}"', f'"[..., {words}]"')


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
        lines.append(f'_check_operand("{HOST[t]}", {HOST[t]}, {allowed}, {shape}, x)')
    if plan.norm.residual_in_place:
        lines.append('_check_in_place("residual", residual)')
    if "eps" in plan.arguments:
        lines.append("_check_eps(eps)")
    if not plan.norm.backward:
        listed = ", ".join(f"{HOST[t]}={HOST[t]}" for t in plan.tensors)
        lines.append(f"_check_no_gradient({listed})")
    return tuple(lines)


def x_dtypes(plan: NormPlan) -> str:
    """The tuple of dtypes that x may have."""
    names = plan.norm.dtype
    if set(names) == {"float32", "bfloat16", "float16"}:
        return "_FLOATS"
    return f"({', '.join(f'torch.{n}' for n in names)}{',' if len(names) == 1 else ''})"


def _allowed(dtype: Dtype, x: Dtype) -> str:
    """The dtypes that a tensor of this symbolic dtype may have."""
    if dtype == x:
        return "(x.dtype,)"
    (atom,) = dtype
    return "_FLOATS" if atom in HOST else f"(torch.{atom},)"


def gradient_needed(plan: NormPlan) -> tuple[str, ...]:
    """The test for the way through autograd, if there is one."""
    if not plan.norm.backward:
        return ()
    return (f"_needs_gradient({', '.join(HOST[t] for t in plan.tensors)})",)


def eager_arguments(plan: NormPlan) -> tuple[str, ...]:
    """The arguments of ``_NAME_forward`` where no gradient is needed."""
    rows = {HOST[t] for t in plan.tensors if plan.graph.tensors[t] == "element"}
    names = [f"_as_rows({a})" if a in rows else a for a in plan.arguments]
    if plan.norm.statistics_on_request:
        names.append("keep_statistics=False")
    return tuple(names)


def eager_target(plan: NormPlan) -> str:
    """What the results of ``_NAME_forward`` are assigned to, with the equals sign."""
    made = forward_function(plan).results
    used = [name if name in plan.results else "_" for name in made]
    return f"{', '.join(used)} = " if used else ""


def eager_return(plan: NormPlan) -> tuple[str, ...]:
    """The return statement: every result in the shape of x, from those by rows."""
    in_place = overwritten(plan.norm, plan.graph)
    shaped = [
        "residual" if t == in_place else f"{VARIABLES[t]}.view(x.shape)"
        for t in plan.graph.results
    ]
    statistics = plan.results[len(shaped) :]
    shaped += [f"{name}.view(x.shape[:-1])" for name in statistics]
    if len(shaped) == 1:
        return (f"return {shaped[0]}",)
    return ("return (", *(f"    {value}," for value in shaped), ")")


def module(plan: NormPlan) -> Module:
    """The facts of the nn.Module."""
    affine = plan.norm.affine
    has_eps = "eps" in plan.arguments
    starts = {"weight": 1.0 - affine.weight_offset, "bias": 0.0}
    fixed = affine.dtype not in ("any", "same")
    own = {name: f"self.{name}" for name in (*plan.parameters, "eps")}
    length_and_eps = "{self.hidden_size}, eps=" + (
        "{self.eps}" if has_eps else repr(plan.norm.eps)
    )
    return Module(
        declarations=("eps: float",) if has_eps else (),
        dtype=f"torch.{affine.dtype}" if fixed and plan.parameters else "None",
        attributes=("self.eps = eps",) if has_eps else (),
        parameters=plan.parameters,
        trains="" if plan.norm.backward else ", requires_grad=False",
        initialization=tuple(
            f"torch.nn.init.constant_(self.{name}, {starts[name]})"
            for name in plan.parameters
        ),
        inputs=tuple(
            _declaration(a)
            for a in plan.arguments
            if a not in plan.parameters and a != "eps"
        ),
        call=", ".join(own.get(a, a) for a in plan.arguments),
        representation=f'f"{length_and_eps}"',
    )
