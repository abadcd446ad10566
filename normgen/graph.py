"""A norm as a graph of named values: its steps in order, with the dtype of each.

Here every line of forward maths gets its final name.  Nothing is known of rows, blocks
or memory: a strategy later slices out what each of its sweeps needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from normgen import dtypes, steps
from normgen.dtypes import FLOAT32, Dtype
from normgen.expr import names, substitute
from normgen.spec import Norm
from normgen.statistics import Mean, Statistic, statistic
from normgen.steps import Space, Step


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
    read or stored, to its dtype.  ``results`` maps the tensors stored per element to
    the values they take; ``replayed`` values stand in memory exactly.  ``overwrites``
    maps a result to the input whose memory it takes.  ``eps`` is a literal or ``eps``.
    """

    statistic: Statistic
    eps: str
    prologue: tuple[Node, ...]
    norm: Node
    epilogue: tuple[Node, ...]
    tensors: Mapping[str, Space]
    dtypes: Mapping[str, Dtype]
    results: Mapping[str, str]
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
    def means(self) -> tuple[Mean, ...]:
        """The row means of the statistic, in order."""
        return tuple(
            Mean(mean.name, substitute(mean.term, self.known))
            for mean in self.statistic.means
        )

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line of the forward pass but the row means."""
        made: list[Line] = []
        for node in self.prologue:
            made += self._lines(node)
        for value in (*self.statistic.values, self.statistic.rstd):
            made.append(Line(value.name, substitute(value.kernel, self.known)))
        for node in (self.norm, *self.epilogue):
            made += self._lines(node)
        return tuple(made)

    def _lines(self, node: Node) -> list[Line]:
        made = [
            Line(
                helper.name,
                helper.value,
                self.dtypes[helper.rounds_to] if helper.rounds_to else FLOAT32,
            )
            for helper in node.step.helpers
        ]
        formula = substitute(node.step.value, {"x": node.source})
        return [*made, Line(node.out, formula, node.dtype if node.rounded else FLOAT32)]


def build(norm: Norm) -> Graph:
    """The graph of one norm."""
    tensors = tensor_dtypes(norm)
    prologue = place(prologue_steps(norm), "x", tensors["x"], tensors)
    source = prologue[-1].out if prologue else "x"
    stat = statistic(norm.variant, norm.eps_placement)
    x_hat = Node(
        Step("x_hat", stat.x_hat, {"x": stat.adjoint}), source, "x_hat", FLOAT32
    )

    epilogue = place(affine_steps(norm, tensors), "x_hat", FLOAT32, tensors)
    promoted = epilogue[-1].dtype if epilogue else FLOAT32
    stored = out_dtype(norm, promoted)
    if norm.residual == "post_add":
        added = [steps.ADD_RESIDUAL]
        if norm.residual_sum == "rounded":
            added.insert(0, steps.rounding("normed", stored))
        source, dtype = (epilogue or [x_hat])[-1].out, promoted
        epilogue += place(added, source, dtype, tensors)
        stored = tensors["r"]
    epilogue = end(epilogue, stored)

    x_space: dict[str, Space] = {"x": "element"}
    read = x_space | {
        operand.name: operand.space
        for node in (*prologue, *epilogue)
        for operand in node.step.operands
    }
    kept = {node.out: node.out for node in prologue if node.step.returned}
    return Graph(
        statistic=stat,
        eps="eps" if norm.eps == "argument" else repr(norm.eps),
        prologue=tuple(prologue),
        norm=x_hat,
        epilogue=tuple(epilogue),
        tensors=read,
        dtypes=tensors | {"y": stored} | dict.fromkeys(kept, tensors["r"]),
        results={"y": epilogue[-1].out if epilogue else "x_hat"} | kept,
        replayed=tuple(node.out for node in prologue if node.step.replayed),
        overwrites={(*kept, "y")[0]: "r"} if norm.residual_in_place else {},
    )


def tensor_dtypes(norm: Norm) -> dict[str, Dtype]:
    """The dtype of each input: known where the spec fixes it, else the tensor's own."""
    x = dtypes.of(norm.dtype[0] if len(norm.dtype) == 1 else "x")

    def parameter(name: str) -> Dtype:
        own = {"any": dtypes.of(name), "same": x}
        return own.get(norm.affine.dtype) or dtypes.of(norm.affine.dtype)

    return {
        "x": x,
        "r": FLOAT32 if norm.residual_dtype == "float32" else x,
        "w": parameter("w"),
        "b": parameter("b"),
    }


def out_dtype(norm: Norm, promoted: Dtype) -> Dtype:
    """The dtype of y, before a residual is added to it."""
    named = {"same": tensor_dtypes(norm)["x"], "promote": promoted}
    return named.get(norm.out_dtype) or dtypes.of(norm.out_dtype)


def prologue_steps(norm: Norm) -> list[Step]:
    """The steps before the statistic."""
    if norm.residual != "pre_add":
        return []
    rounded = norm.residual_sum == "rounded"
    return [steps.ROUNDED_SUM if rounded else steps.UNROUNDED_SUM]


def affine_steps(norm: Norm, tensors: Mapping[str, Dtype]) -> list[Step]:
    """The steps from x_hat to the end of the affine part."""
    made: list[Step] = []
    normalized = {"none": FLOAT32, "io": tensors["x"], "weight": tensors["w"]}
    made.append(steps.rounding("rounded", normalized[norm.rounding.normalized]))
    if norm.has_weight:
        offset, precision = norm.affine.weight_offset, norm.affine.offset_precision
        made.append(steps.offset_scale(offset, precision) if offset else steps.SCALE)
    if norm.affine.bias:
        made.append(steps.SHIFT)
    if norm.rounding.affine == "io":
        made.append(steps.rounding("affine", tensors["x"]))
    return made


def place(
    made: list[Step], source: str, dtype: Dtype, tensors: Mapping[str, Dtype]
) -> list[Node]:
    """Steps one after the other from ``source``, without roundings that do nothing."""
    nodes: list[Node] = []
    for step in made:
        if step.rounds_to in (FLOAT32, dtype):
            continue
        joined = (tensors.get(name) or dtypes.of(name) for name in step.promotes)
        result = step.rounds_to or dtypes.promote(dtype, *joined)
        if nodes and step.rounds_to and dtypes.store_rounds_alike(dtype, result):
            nodes[-1] = replace(nodes[-1], rounded=False)
        nodes.append(Node(step, source, step.out, result))
        source, dtype = step.out, result
    return nodes


def end(nodes: list[Node], stored: Dtype) -> list[Node]:
    """The last node is y, and left unrounded where the store rounds alike."""
    while nodes and nodes[-1].step.rounds_to is not None:
        if not dtypes.store_rounds_alike(nodes[-1].dtype, stored):
            break
        nodes = nodes[:-1]
    if not nodes:
        return []
    alike = dtypes.store_rounds_alike(nodes[-1].dtype, stored)
    return [*nodes[:-1], replace(nodes[-1], out="y", rounded=not alike)]
