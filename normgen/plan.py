"""The plan of one norm: its names, interface, strategies and kernels, all decided."""

from __future__ import annotations

from dataclasses import dataclass

from normgen import graph as graphs
from normgen import launch
from normgen.adjoint import Adjoint, differentiate
from normgen.backward import BackwardKernel, backward_kernel
from normgen.dtypes import Dtype, promote
from normgen.fields import class_name
from normgen.forward import ForwardKernel, forward_kernel
from normgen.graph import Graph
from normgen.grid import Grid
from normgen.grid import grid as grid_of
from normgen.launch import Direction
from normgen.naming import ARGUMENTS, RESULTS
from normgen.spaces import Space
from normgen.spec import Norm
from normgen.strategies import STRATEGIES, Strategy


@dataclass(frozen=True)
class Branch:
    """The row lengths of one strategy: those listed, up to ``largest`` (None: any)."""

    strategy: Strategy
    lengths: tuple[int, ...]
    largest: int | None


@dataclass(frozen=True)
class NormPlan:
    """One norm, decided.

    ``tensors`` are the tensor arguments by kernel name, in the order of the interface;
    ``arguments`` all arguments by Python name; ``results`` what is returned.
    """

    norm: Norm
    name: str
    class_name: str
    graph: Graph
    adjoint: Adjoint
    grid: Grid
    tensors: tuple[str, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    forward_branches: tuple[Branch, ...]
    backward_branches: tuple[Branch, ...]
    forward_kernels: tuple[ForwardKernel, ...]
    backward_kernels: tuple[BackwardKernel, ...]

    @property
    def learned(self) -> tuple[str, ...]:
        """The tensors that a module has as parameters."""
        operands = (o for node in self.graph.nodes for o in node.step.operands)
        names = {operand.name for operand in operands if operand.learned}
        return tuple(t for t in self.tensors if t in names)

    def space(self, tensor: str) -> Space:
        """The index space of an input, a stored value or an incoming gradient."""
        known = {**self.graph.spaces, **self.graph.tensors, **self.adjoint.tensors}
        return known[tensor]

    def gradient_dtype(self, gradient: str) -> Dtype:
        """The dtype that a gradient is made in: the widest of the tensors it is of."""
        owners = self.adjoint.owners(gradient, self.tensors)
        return promote(*(self.graph.dtypes[t] for t in owners))

    def branches(self, direction: Direction) -> tuple[Branch, ...]:
        """The strategies of a direction, shortest rows first."""
        if direction == "forward":
            return self.forward_branches
        return self.backward_branches


def plan(norm: Norm) -> NormPlan:
    """Decides everything about one norm."""
    graph = graphs.build(norm)
    adjoint, grid = differentiate(graph), grid_of(norm, graph)
    means = len(graph.means)
    forward = branches(norm, "forward", means)
    backward = branches(norm, "backward", means) if norm.backward else ()
    tensors = tuple(t for t in ARGUMENTS if t in graph.tensors)
    eps = ("eps",) if norm.eps == "argument" else ()
    statistics = graph.statistic.saved if norm.save_stats == "always" else ()
    return NormPlan(
        norm=norm,
        name=norm.name,
        class_name=class_name(norm.name),
        graph=graph,
        adjoint=adjoint,
        grid=grid,
        tensors=tensors,
        arguments=(*(ARGUMENTS[t] for t in tensors), *eps),
        results=(*(RESULTS[t] for t in graph.results), *statistics),
        forward_branches=forward,
        backward_branches=backward,
        forward_kernels=tuple(
            forward_kernel(name, norm, graph, grid, branch.strategy)
            for name, branch in _named(f"_{norm.name}_fwd", forward)
        ),
        backward_kernels=tuple(
            backward_kernel(name, graph, adjoint, grid, branch.strategy)
            for name, branch in _named(f"_{norm.name}_bwd", backward)
        ),
    )


def branches(norm: Norm, direction: Direction, means: int) -> tuple[Branch, ...]:
    """The strategies that a norm's row lengths take, shortest rows first.

    ``means`` is how many row means the statistic takes, one after the other.
    """
    lengths = norm.normalized_lengths or launch.dynamic_lengths(
        norm.strategy, direction, means, norm.axis
    )
    chosen: dict[str, list[int]] = {}
    for length in sorted(lengths):
        name = launch.strategy_of(length, direction, norm.strategy, means, norm.axis)
        chosen.setdefault(name, []).append(length)
    last = list(chosen)[-1]
    return tuple(
        Branch(STRATEGIES[name], tuple(taken), None if name == last else taken[-1])
        for name, taken in chosen.items()
    )


def _named(stem: str, branches: tuple[Branch, ...]) -> list[tuple[str, Branch]]:
    """Kernel names: with the strategy in them only where a norm has several."""
    if len(branches) == 1:
        return [(f"{stem}_kernel", branches[0])]
    return [(f"{stem}_{branch.strategy.name}_kernel", branch) for branch in branches]
