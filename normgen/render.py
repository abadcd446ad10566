"""From a spec to the text of its module, below the header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from normgen import engine, host, interface, wording
from normgen.autograd import autograd
from normgen.eager import HOST, reference_lines
from normgen.kernels import Kernel
from normgen.plan import Branch, NormPlan, plan
from normgen.spec import SpecFile
from normgen.tables import tables

#: in the order in which they stand; each is left out where nothing calls it
HELPERS = (
    "_FLOATS",
    "_MULTIPROCESSOR_COUNTS",
    "_sum_partials",
    "_partial_sums",
    "_multiprocessors",
    "_triton_dtype",
    "_alignment",
    "_as_rows",
    "_takes_reference",
    "_needs_gradient",
    "_check_x",
    "_check_operand",
    "_check_in_place",
    "_check_eps",
    "_check_no_gradient",
)


KERNEL_NAMES = {name: name for name in HOST}


@dataclass(frozen=True)
class Body:
    """A module without its header, and the templates it was rendered from."""

    text: str
    templates: Mapping[str, str]


def render_body(spec: SpecFile) -> Body:
    """Renders the module of a spec.  The text ends with one newline."""
    plans = [plan(norm) for norm in spec.kernels]
    used = ["module.py.jinja", "parts.jinja"]
    parts = [part for one in plans for part in _norm_parts(one, used)]
    helpers = _helpers("\n".join(parts))
    used += [f"helpers/{name}.py.jinja" for name in helpers]
    kernels = [k for p in plans for k in (*p.forward_kernels, *p.backward_kernels)]
    runtime = list(dict.fromkeys(a for k in kernels for a in k.runtime_arguments))
    if "_sum_partials" in helpers:
        runtime += ["partial_ptr", "out_ptr", "n_partials"]
    has_backward = any(p.norm.backward for p in plans)
    imports = ["from torch.autograd.function import once_differentiable"]
    text = engine.render(
        "module.py.jinja",
        m=SimpleNamespace(
            docstring=wording.module_docstring(spec, plans),
            imports=imports if has_backward else [],
            public=[
                *sorted(p.class_name for p in plans),
                *sorted(n for p in plans for n in (p.name, f"{p.name}_reference")),
            ],
            runtime_arguments=runtime,
            constants=[_helper(name) for name in helpers if name.isupper()],
            parts=[*parts, *(_helper(name) for name in helpers if name.islower())],
            a_kernel=plans[0].forward_kernels[0].name,
        ),
    )
    sources = {name: engine.source(name) for name in sorted(set(used))}
    return Body(engine.tidy(text), sources)


def _norm_parts(p: NormPlan, used: list[str]) -> list[str]:
    """The paragraphs of one norm, in the order in which they stand."""
    forward = [
        _kernel(p, kernel, branch, "forward", used)
        for kernel, branch in zip(p.forward_kernels, p.forward_branches, strict=True)
    ]
    backward = [
        _kernel(p, kernel, branch, "backward", used)
        for kernel, branch in zip(p.backward_kernels, p.backward_branches, strict=True)
    ]
    facts = _facts(p)
    names = ["launch_tables", "forward", "function", "reference", "module"]
    if p.norm.backward:
        names[2:2] = ["backward", "autograd"]
    hosts = []
    for name in names:
        used.append(f"host/{name}.py.jinja")
        hosts.append(engine.render(used[-1], n=facts))
    return [*forward, *backward, *hosts]


def _kernel(
    p: NormPlan, kernel: Kernel, branch: Branch, direction: str, used: list[str]
) -> str:
    title, formulas = {
        "forward": (wording.summary(p), wording.formula(p, KERNEL_NAMES)),
        "backward": (f"The gradients of {p.name}.", wording.gradients(p)),
    }[direction]
    docstring = wording.kernel_docstring(kernel, title, formulas)
    opening = engine.macro("parts.jinja", "opening", kernel, docstring).rstrip("\n")
    used.append(f"{direction}/{branch.strategy.name}.py.jinja")
    return engine.render(used[-1], opening=opening, k=kernel)


def _facts(p: NormPlan) -> SimpleNamespace:
    """Everything that the host templates may ask for."""
    facts = SimpleNamespace(
        name=p.name,
        class_name=p.class_name,
        arguments=p.arguments,
        declarations=interface.declarations(p),
        call=", ".join(p.arguments),
        returns=interface.returns(p),
        tables=tables(p),
        forward=host.forward_function(p),
        docstring=wording.function_docstring(p),
        dtypes=interface.x_dtypes(p),
        length=interface.length(p),
        checks=interface.checks(p),
        gradient_needed=interface.gradient_needed(p),
        eager_target=interface.eager_target(p),
        eager_arguments=interface.eager_arguments(p),
        eager_return=interface.eager_return(p),
        reference=reference_lines(p.norm, p.graph),
        module=interface.module(p),
        module_docstring=wording.module_class_docstring(p),
    )
    if p.norm.backward:
        facts.backward = host.backward_function(p)
        facts.autograd = autograd(p)
    return facts


def _helpers(text: str) -> list[str]:
    """The helpers that ``text`` calls, and those that these call."""
    found: set[str] = set()
    while True:
        called = {name for name in HELPERS if re.search(rf"\b{name}\b", text)} - found
        if not called:
            return [name for name in HELPERS if name in found]
        found |= called
        text = "\n".join(map(_helper, called))


def _helper(name: str) -> str:
    return engine.render(f"helpers/{name}.py.jinja")
