"""What the tests read out of a generated module's syntax."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

Function = ast.FunctionDef


@dataclass(frozen=True)
class Comment:
    """A comment, with the lines of the top-level statement that holds it.

    ``line`` is its own line in ``block``, and ``block`` is the whole file where it
    stands between statements.
    """

    text: str
    block: tuple[str, ...]
    line: int

    @property
    def before(self) -> str:
        return "\n".join(self.block[: self.line])

    @property
    def after(self) -> str:
        """From its own line on."""
        return "\n".join(self.block[self.line :])


def comments(text: str) -> Iterator[Comment]:
    """Every comment of a module."""
    lines = tuple(text.split("\n"))
    statements = ast.parse(text).body
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        at = token.start[0]
        inside = [s for s in statements if s.lineno <= at <= (s.end_lineno or 0)]
        start = inside[0].lineno - 1 if inside else 0
        end = inside[0].end_lineno if inside else len(lines)
        yield Comment(token.string, lines[start:end], at - 1 - start)


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions, but those of the stand-in for triton."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and node.name in ("tl", "triton"):
            continue
        if isinstance(node, Function):
            yield node
        yield from functions(node)


def is_jitted(function: Function) -> bool:
    return any("triton.jit" in ast.unparse(d) for d in function.decorator_list)


def is_kernel(function: Function) -> bool:
    """Whether the host launches it: what kernels call has no grid, and no pointers."""
    return is_jitted(function) and function.name.endswith("_kernel")


def kernels(tree: ast.AST) -> list[Function]:
    return [function for function in functions(tree) if is_kernel(function)]


def parameters(function: Function) -> list[ast.arg]:
    args = function.args
    starred = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *starred]


def is_constexpr(argument: ast.arg) -> bool:
    annotation = argument.annotation
    return annotation is not None and ast.unparse(annotation) == "tl.constexpr"


def loaded(tree: ast.AST) -> set[str]:
    """The names that are read."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def stored(tree: ast.AST) -> set[str]:
    """The names that are assigned, but ``_``."""
    found = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return found - {"_"}


def exported(tree: ast.Module) -> list[str]:
    """The names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError("no __all__")


def defined(tree: ast.Module) -> list[str]:
    """The names of a module's functions, classes and assignments, in order."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [ast.unparse(target) for target in node.targets]
    return found


def tables(tree: ast.Module) -> dict[str, dict]:
    """The launch tables, each as {row length: options}."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            name = ast.unparse(node.targets[0])
            if name.endswith(("_FORWARD", "_FEW_ROWS", "_BACKWARD")):
                found[name] = ast.literal_eval(node.value)
    return found
