"""The backward pass of a graph: gradients named, gathered, and reduced to their lines.

The graph is walked from its end.  A value used twice, or returned, gathers its
gradients in a sum.  A gradient that equals another one has no line: it is an alias of
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from normgen.expr import add, is_name, substitute
from normgen.graph import Graph, Line, Node
from normgen.spaces import ELEMENT, Space
from normgen.statistics import Reduction
from normgen.steps import OPERANDS, Operand


@dataclass(frozen=True)
class Adjoint:
    """The backward lines of a graph.

    ``tensors`` maps the incoming gradients to their index space, ``gradients`` what the
    pass makes to theirs.  ``aliases`` maps a tensor to the gradient that is also its
    own: of another tensor, or an incoming one.
    """

    lines: tuple[Line, ...]
    means: tuple[Reduction, ...]
    tensors: Mapping[str, Space]
    gradients: Mapping[str, Space]
    aliases: Mapping[str, str]

    def of(self, tensor: str) -> str:
        """The gradient of an input tensor."""
        return self.aliases.get(tensor, gradient_name(tensor))

    def owners(self, gradient: str, tensors: Iterable[str]) -> tuple[str, ...]:
        """Those of ``tensors`` whose gradient this is."""
        return tuple(t for t in tensors if self.of(t) == gradient)


def gradient_name(tensor: str) -> str:
    """What the gradient of a tensor or value is called."""
    return f"d{tensor}"


def differentiate(graph: Graph) -> Adjoint:
    """The adjoint of every input of ``graph``, given the gradients of its results."""
    return _Walk(graph).run()


@dataclass
class _Walk:
    graph: Graph
    lines: list[Line] = field(default_factory=list)
    means: tuple[Reduction, ...] = ()
    gradients: dict[str, Space] = field(default_factory=dict)
    equal: dict[str, str] = field(default_factory=dict)
    arriving: dict[str, list[str]] = field(default_factory=dict)

    def run(self) -> Adjoint:
        graph = self.graph
        for tensor, value in graph.results.items():
            self.arriving.setdefault(value, []).append(gradient_name(tensor))
        for node in reversed(graph.nodes):
            self._step_back(node)
        self._store_x(self._gather("x"))
        incoming = {gradient_name(t): graph.spaces[t] for t in graph.results}
        aliases = self._aliases(incoming)
        order = [gradient_name(t) for t in ("x", *(o.name for o in OPERANDS))]
        return Adjoint(
            lines=tuple(self.lines),
            means=self.means,
            tensors=incoming,
            gradients={g: self.gradients[g] for g in order if g in self.gradients},
            aliases=aliases,
        )

    def _step_back(self, node: Node) -> None:
        named = {"x": node.source, "dy": self._gather(node.out), "eps": self.graph.eps}
        if node is self.graph.norm:
            statistic = self.graph.statistic
            self.means = tuple(
                replace(mean, term=substitute(mean.term, named))
                for mean in statistic.adjoint_means
            )
            for value in statistic.adjoint_values:
                self.lines.append(Line(value.name, substitute(value.formula, named)))
        for operand in node.step.operands:
            self._operand(operand, substitute(node.step.grads[operand.name], named))
        gradient = substitute(node.step.grads["x"], named)
        self.arriving.setdefault(node.source, []).append(gradient)

    def _gather(self, value: str) -> str:
        """The name of a value's gradient; a line makes it, unless it has a name."""
        terms = self.arriving[value]
        if len(terms) == 1 and is_name(terms[0]):
            return terms[0]
        name = gradient_name(self._origin(value))
        self.lines.append(Line(name, add(terms)))
        return name

    def _origin(self, value: str) -> str:
        """The earliest value that has the same gradient."""
        uses = Counter(node.source for node in self.graph.nodes)
        uses.update(self.graph.results.values())
        for node in reversed(self.graph.nodes):
            alone = uses[node.source] == 1
            if node.out == value and node.step.grads["x"] == "dy" and alone:
                value = node.source
        return value

    def _store_x(self, gradient: str) -> None:
        """dx is stored; where it is an incoming gradient, it is handed on as it is."""
        if gradient == gradient_name("x"):
            self.gradients[gradient] = ELEMENT
        else:
            self.equal["x"] = gradient

    def _operand(self, operand: Operand, formula: str) -> None:
        name = gradient_name(operand.name)
        if operand.space == ELEMENT and is_name(formula):
            self.equal[operand.name] = formula
            return
        accumulates = operand.space != ELEMENT
        self.lines.append(Line(name, formula, accumulates=accumulates))
        self.gradients[name] = operand.space

    def _aliases(self, incoming: Mapping[str, Space]) -> dict[str, str]:
        """Gradients equal to one that comes in or is stored; other ones are stored."""
        aliases = {}
        for tensor, gradient in self.equal.items():
            if gradient in incoming or gradient in self.gradients:
                aliases[tensor] = gradient
            else:
                name = gradient_name(tensor)
                self.lines.append(Line(name, gradient))
                self.gradients[name] = ELEMENT
        return aliases
