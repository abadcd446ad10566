"""A norm as a graph of named values: its steps in order, with the dtype of each.

Here every line of forward maths gets its final name.  Nothing is known of rows, blocks
or memory: a strategy later slices out what each of its sweeps needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from normgen import dtypes, pipeline
from normgen.dtypes import FLOAT32, Dtype
from normgen.expr import names, substitute
from normgen.pipeline import out_dtype, tensor_dtypes
from normgen.spaces import ELEMENT, ROW, Space
from normgen.spec import Norm
from normgen.statistics import Reduction, Statistic, statistic
from normgen.steps import Helper, Step


@dataclass(frozen=True)
class Line:
    """``target = formula`` rounded to ``dtype``, or ``target += formula``."""

    target: str
    formula: str
    dtype: Dtype = FLOAT32
    accumulates: bool = False

    @property
    def uses(self) -> frozenset[str]:
        """The names that the formula reads."""
        return names(self.formula)


@dataclass(frozen=True)
class Node:
    """A step in its place: from the value ``source`` to ``out``, of ``dtype``.

    ``rounded`` is false for the last node where the store alone rounds as it should.
    """

    step: Step
    source: str
    out: str
    dtype: Dtype
    rounded: bool = True


@dataclass(frozen=True)
class Graph:
    """The forward pass of a norm.

    ``tensors`` maps what a kernel may read to its index space, ``dtypes`` each tensor,
    read or stored, to its dtype.  ``results`` maps the tensors that are stored to the
    values they take, ``spaces`` those results to where they have values; ``replayed``
    values stand in memory exactly.  ``overwrites`` maps a result to the input whose
    memory it takes.  ``eps`` is a literal or ``eps``.
    """

    statistic: Statistic
    eps: str
    prologue: tuple[Node, ...]
    norm: Node
    epilogue: tuple[Node, ...]
    tensors: Mapping[str, Space]
    dtypes: Mapping[str, Dtype]
    results: Mapping[str, str]
    spaces: Mapping[str, Space]
    replayed: tuple[str, ...]
    overwrites: Mapping[str, str]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All steps in order; the norm itself is the one from the rows to x_hat."""
        return (*self.prologue, self.norm, *self.epilogue)

    @property
    def known(self) -> dict[str, str]:
        """What the statistic calls x and eps, by the names they have here."""
        return {"x": self.norm.source, "eps": self.eps}

    @property
    def numerator(self) -> str:
        """What x_hat is made of, by the name it has here."""
        return substitute(self.statistic.numerator, self.known)

    @property
    def means(self) -> tuple[Reduction, ...]:
        """The reductions of the statistic, in order."""
        return tuple(
            replace(mean, term=substitute(mean.term, self.known))
            for mean in self.statistic.means
        )

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line of the forward pass but the reductions."""
        made: list[Line] = []
        for node in self.prologue:
            made += self._lines(node)
        for value in self.statistic.values:
            dtype = self.dtypes["x"] if value.rounds else FLOAT32
            made.append(Line(value.name, substitute(value.formula, self.known), dtype))
        for node in (self.norm, *self.epilogue):
            made += self._lines(node)
        return tuple(made)

    @property
    def per_row(self) -> frozenset[str]:
        """The values that are one number a row."""
        return self.statistic.per_row

    def helper_dtype(self, helper: Helper) -> Dtype:
        """What a helper value is rounded to."""
        return promoted(helper.promotes, self.dtypes)

    def _lines(self, node: Node) -> list[Line]:
        known = {"x": node.source, "numerator": self.numerator}
        made = [
            Line(h.name, substitute(h.value, known), self.helper_dtype(h))
            for h in node.step.helpers
        ]
        formula = substitute(node.step.value, known)
        return [*made, Line(node.out, formula, node.dtype if node.rounded else FLOAT32)]


def promoted(atoms: tuple[str, ...], tensors: Mapping[str, Dtype]) -> Dtype:
    """The promotion of tensors and dtypes, given by name."""
    return dtypes.promote(*(tensors.get(atom) or dtypes.of(atom) for atom in atoms))


def build(norm: Norm) -> Graph:
    """The graph of one norm."""
    tensors, stat = tensor_dtypes(norm), statistic(norm)
    prologue = place(pipeline.prologue(norm, tensors), "x", tensors["x"], tensors)
    source = prologue[-1].out if prologue else "x"
    if norm.output == "factor":
        return _factor(norm, stat, prologue, source)
    dtype = tensors["x"] if stat.x_hat.rounds else FLOAT32
    x_hat = Node(
        Step("x_hat", stat.x_hat.formula, {"x": stat.adjoint}), source, "x_hat", dtype
    )
    steps = pipeline.epilogue(norm, tensors)
    shared = place(steps.shared, x_hat.out, x_hat.dtype, tensors)
    fork = (shared or [x_hat])[-1]
    epilogue, results, stored = list(shared), {}, {}
    for out, made in steps.results.items():
        nodes = place(made, fork.out, fork.dtype, tensors)
        promotion = (nodes or [fork])[-1].dtype
        adds = norm.residual == "post_add"
        stored[out] = tensors["r"] if adds else out_dtype(norm, promotion)
        nodes = end(nodes, stored[out], out)
        results[out] = (nodes or [fork])[-1].out
        epilogue += nodes
    kept = {node.out: node.out for node in prologue if node.step.returned}
    results |= kept
    return Graph(
        statistic=stat,
        eps="eps" if norm.eps == "argument" else repr(norm.eps),
        prologue=tuple(prologue),
        norm=x_hat,
        epilogue=tuple(epilogue),
        tensors=read_by((*prologue, *epilogue)),
        dtypes=tensors | stored | dict.fromkeys(kept, tensors["r"]),
        results=results,
        spaces=dict.fromkeys(results, ELEMENT),
        replayed=tuple(node.out for node in prologue if node.step.replayed),
        overwrites={(*kept, "y")[0]: "r"} if norm.residual_in_place else {},
    )


def _factor(norm: Norm, stat: Statistic, prologue: list[Node], source: str) -> Graph:
    """The graph of a norm that returns the factor of a row alone."""
    tensors = tensor_dtypes(norm)
    gradient = {"projection": "dy"}
    values = (
        replace(value, formula=substitute(value.formula, gradient))
        for value in stat.adjoint_values
    )
    adjoint = substitute(stat.factor_adjoint, gradient)
    step = Step("factor", stat.factor, {"x": adjoint})
    return Graph(
        statistic=replace(stat, adjoint_means=(), adjoint_values=tuple(values)),
        eps="eps" if norm.eps == "argument" else repr(norm.eps),
        prologue=tuple(prologue),
        norm=Node(step, source, "factor", FLOAT32),
        epilogue=(),
        tensors=read_by(prologue),
        dtypes=tensors | {"factor": out_dtype(norm, FLOAT32)},
        results={"factor": "factor"},
        spaces={"factor": ROW},
        replayed=(),
        overwrites={},
    )


def read_by(nodes: Iterable[Node]) -> dict[str, Space]:
    """The tensors that steps read, and x, with their index spaces."""
    operands = (operand for node in nodes for operand in node.step.operands)
    return {"x": ELEMENT, **{operand.name: operand.space for operand in operands}}


def place(
    made: Iterable[Step], source: str, dtype: Dtype, tensors: Mapping[str, Dtype]
) -> list[Node]:
    """Steps one after the other from ``source``, without roundings that do nothing."""
    nodes: list[Node] = []
    for step in made:
        if step.rounds_to in (FLOAT32, dtype):
            continue
        joined = promoted(step.promotes, tensors) if step.promotes else dtype
        result = step.rounds_to or dtypes.promote(dtype, joined)
        if step.replayed and result != tensors["r"]:  # what is stored is what is read
            result = tensors["r"]
            step = replace(step, rounds_to=result)
        if nodes and step.is_cast and dtypes.store_rounds_alike(dtype, result):
            nodes[-1] = replace(nodes[-1], rounded=False)
        nodes.append(Node(step, source, step.out, result))
        source, dtype = step.out, result
    return nodes


def end(nodes: list[Node], stored: Dtype, out: str) -> list[Node]:
    """The last node is a result, left unrounded where the store rounds alike."""
    while nodes and nodes[-1].step.is_cast:
        if not dtypes.store_rounds_alike(nodes[-1].dtype, stored):
            break
        nodes = nodes[:-1]
    if not nodes:
        return []
    alike = dtypes.store_rounds_alike(nodes[-1].dtype, stored)
    return [*nodes[:-1], replace(nodes[-1], out=out, rounded=not alike)]
