"""From a spec to the text of its module, below the header."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from normgen import interface, wording
from normgen.autograd import Autograd, autograd
from normgen.eager import reference_lines
from normgen.engine import Renderer, tidy
from normgen.host import Function, backward_function, forward_function
from normgen.interface import Length, Module
from normgen.kernels import Kernel
from normgen.launch import Direction
from normgen.layout import laid_out
from normgen.naming import ARGUMENTS
from normgen.patching import PUBLIC, patching
from normgen.plan import NormPlan, plan
from normgen.spec import SpecFile
from normgen.tables import Table, tables

#: in the order in which they stand; each is left out where nothing uses it
HELPERS = (
    "_FLOATS",
    "_MULTIPROCESSOR_COUNTS",
    "_at_least",
    "_at_most",
    "_tanh",
    "_sum_partials",
    "_sum_partials_as",
    "_new_partials",
    "_multiprocessors",
    "_triton_dtype",
    "_OnceDifferentiable",
    "_alignment",
    "_as_rows",
    "_as_planes",
    "_per_sample",
    "_takes_reference",
    "_needs_gradient",
    "_check_x",
    "_check_operand",
    "_check_in_place",
    "_check_eps",
    "_check_no_gradient",
    "_REPLACED",
    "_class_paths",
    "_is_looked_for",
    "_check_model",
    "_check_plain",
    "_stand_in_for",
    "_check_groups_of",
    "_check_no_eps_of",
    "_check_settings",
    "_columns_of",
    "_hidden_size_of",
    "_check_eps_of",
    "_eps_of",
    "_eps_values",
    "_take_over",
)


@dataclass(frozen=True)
class Body:
    """A module without its header, and the templates it was rendered from."""

    text: str
    templates: Mapping[str, str]


@dataclass(frozen=True)
class HostFacts:
    """All that the host templates of one norm may ask for."""

    name: str
    class_name: str
    opening: tuple[str, ...]
    reference_opening: tuple[str, ...]
    reference_call: tuple[str, ...]
    autograd_call: tuple[str, ...]
    tables: tuple[Table, ...]
    lengths: tuple[str, ...]
    forward: Function
    docstring: list[str]
    dtypes: str
    length: Length
    checks: tuple[str, ...]
    eager: tuple[str, ...]
    reference: list[str]
    module: Module
    backward: Function | None
    autograd: Autograd | None


@dataclass(frozen=True)
class ModuleFacts:
    """All that the template of a whole module may ask for."""

    docstring: list[str]
    public: tuple[str, ...]
    runtime_arguments: tuple[str, ...]
    constants: list[str]
    parts: list[str]
    helpers: list[str]
    stub: str
    interpreted: tuple[str, ...]


def render_body(spec: SpecFile) -> Body:
    """Renders the module of a spec.  The text ends with one newline."""
    plans = [plan(norm) for norm in spec.kernels]
    renderer = Renderer()
    parts = [part for one in plans for part in _norm_parts(one, renderer)]
    if (facts := patching(plans)) is not None:
        parts.append(renderer.render("host/patch.py.jinja", p=facts))
    helpers = _helpers(parts, renderer)
    text = renderer.render(
        "module.py.jinja", m=_module_facts(spec, plans, parts, helpers)
    )
    return Body(tidy(text), dict(sorted(renderer.used.items())))


def _module_facts(
    spec: SpecFile, plans: list[NormPlan], parts: list[str], helpers: dict[str, str]
) -> ModuleFacts:
    names = [n for p in plans for n in (p.class_name, p.name, f"{p.name}_reference")]
    names += PUBLIC if patching(plans) else ()
    stubs = ("constexpr", "int64", *(["dtype"] if "_triton_dtype" in helpers else []))
    a_kernel = plans[0].forward_kernels[0].name
    return ModuleFacts(
        docstring=wording.module_docstring(spec, plans),
        public=tuple(sorted(names)),
        runtime_arguments=_runtime_arguments([*parts, *helpers.values()]),
        constants=[text for name, text in helpers.items() if name.isupper()],
        parts=parts,
        helpers=[text for name, text in helpers.items() if not name.isupper()],
        stub=" = ".join(stubs),
        interpreted=laid_out(
            "_INTERPRETED = not isinstance(", (a_kernel, "triton.JITFunction"), ")"
        ),
    )


def _runtime_arguments(parts: list[str]) -> tuple[str, ...]:
    """The arguments of all kernels that are no constexprs, sorted."""
    kernels = (
        node
        for part in parts
        for node in ast.parse(part).body
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel")
    )
    names = (a.arg for kernel in kernels for a in kernel.args.args)
    return tuple(sorted({name for name in names if not name.isupper()}))


def _norm_parts(p: NormPlan, renderer: Renderer) -> list[str]:
    """The paragraphs of one norm, in the order in which they stand."""
    forward = wording.formula(p, {name: name for name in ARGUMENTS})
    parts = _kernels(p, "forward", wording.summary(p), forward, renderer)
    if p.norm.backward:
        title = f"The gradients of {p.name}."
        parts += _kernels(p, "backward", title, wording.gradients(p), renderer)
    facts = _host_facts(p)
    differentiable = ("backward", "autograd") if p.norm.backward else ()
    for name in (
        "tables",
        "forward",
        *differentiable,
        "function",
        "reference",
        "module",
    ):
        parts.append(renderer.render(f"host/{name}.py.jinja", n=facts))
    return parts


def _kernels(
    p: NormPlan,
    direction: Direction,
    title: str,
    formulas: list[str],
    renderer: Renderer,
) -> list[str]:
    kernels: tuple[Kernel, ...] = p.backward_kernels
    if direction == "forward":
        kernels = p.forward_kernels
    parts = []
    for kernel, branch in zip(kernels, p.branches(direction), strict=True):
        docstring = wording.kernel_docstring(kernel, title, formulas)
        opening = renderer.macro("parts.jinja", "opening", kernel, docstring)
        template = branch.strategy.template(direction)
        parts.append(renderer.render(template, opening=opening.rstrip("\n"), k=kernel))
    return parts


def _host_facts(p: NormPlan) -> HostFacts:
    return HostFacts(
        name=p.name,
        class_name=p.class_name,
        opening=interface.opening(p, p.name),
        reference_opening=interface.opening(p, f"{p.name}_reference"),
        reference_call=interface.reference_call(p),
        autograd_call=interface.autograd_call(p),
        tables=tables(p),
        lengths=interface.lengths(p),
        forward=forward_function(p),
        docstring=wording.function_docstring(p),
        dtypes=interface.x_dtypes(p),
        length=interface.length(p),
        checks=interface.checks(p),
        eager=interface.eager(p),
        reference=reference_lines(p.norm, p.graph),
        module=interface.module(p),
        backward=backward_function(p) if p.norm.backward else None,
        autograd=autograd(p) if p.norm.backward else None,
    )


def _helpers(parts: list[str], renderer: Renderer) -> dict[str, str]:
    """The helpers that the code of ``parts`` names, and those that these name."""
    found: dict[str, str] = {}
    while True:
        named = {
            node.id
            for part in parts
            for node in ast.walk(ast.parse(part))
            if isinstance(node, ast.Name)
        }
        missing = [name for name in HELPERS if name in named and name not in found]
        if not missing:
            return {name: found[name] for name in HELPERS if name in found}
        parts = [renderer.render(f"helpers/{name}.py.jinja") for name in missing]
        found |= dict(zip(missing, parts, strict=True))
