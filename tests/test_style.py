"""What is rendered reads as if written by hand: clean, and nothing in it is dead."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import modules
import pytest
from renderings import GENERATED, LENGTHS, LONG_NAME, texts

from normgen import header
from normgen.spec import MAX_NAME_LENGTH

TEXTS = texts()
every_rendering = pytest.mark.parametrize("name", TEXTS)


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(TEXTS[name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All renderings as files, those of the repository with their headers."""
    made = tmp_path_factory.mktemp("rendered")
    for i, text in enumerate(TEXTS.values()):
        (made / f"rendering_{i}.py").write_text(text, encoding="utf-8")
    for path in GENERATED.glob("*.py"):
        bare = header.strip_pragmas(path.read_text(encoding="utf-8"))
        (made / path.name).write_text(bare, encoding="utf-8")
    return made


def ruff(*arguments: str) -> str:
    """What ruff finds; empty where all is well."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_a_formatter_changes_nothing(folder: Path) -> None:
    assert ruff("format", "--diff", str(folder)) == ""


def test_a_linter_finds_nothing(folder: Path) -> None:
    assert ruff("check", str(folder)) == ""
    assert ruff("check", "--select=B,C4,E,F,I,PIE,RUF,W,UP", str(folder)) == ""


def test_the_renderings_are_as_wide_as_they_get() -> None:
    assert len(LONG_NAME) == MAX_NAME_LENGTH
    assert len(LENGTHS) > 12
    assert any(len(line) == 88 for text in TEXTS.values() for line in text.split("\n"))


@every_rendering
def test_lines_fit_and_blank_ones_are_few(name: str) -> None:
    text = TEXTS[name]
    assert text.isascii()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n\n" not in text
    assert "\t" not in text
    for line in text.split("\n"):
        assert len(line) <= 88, line
        assert line == line.rstrip(), line


@every_rendering
def test_every_argument_is_used(name: str) -> None:
    for function in modules.functions(tree_of(name)):
        exempt = {"self", "ctx", "_"}
        if function.name == "__init__" and "Parameter" not in ast.unparse(function):
            exempt |= {"device", "dtype"}  # all modules are made alike
        read = set().union(*map(modules.loaded, function.body))
        for argument in modules.parameters(function):
            if argument.arg in exempt:
                continue
            assert argument.arg in read, f"{function.name}({argument.arg})"


@every_rendering
def test_every_local_is_used(name: str) -> None:
    for function in modules.functions(tree_of(name)):
        unused = modules.stored(function) - modules.loaded(function)
        assert not unused, function.name


@every_rendering
def test_every_name_of_the_module_is_used_or_public(name: str) -> None:
    tree = tree_of(name)
    read = modules.loaded(tree) | {"__all__"}
    names = modules.defined(tree)
    public = modules.exported(tree)
    assert len(set(names)) == len(names)
    assert public == sorted(public)
    assert {n for n in names if not n.startswith("_")} == set(public)
    assert set(names) <= read | set(public)


@every_rendering
def test_every_attribute_of_the_autograd_context_is_read(name: str) -> None:
    attributes = [
        node
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ctx"
    ]
    written = {n.attr for n in attributes if isinstance(n.ctx, ast.Store)}
    assert written <= {n.attr for n in attributes if isinstance(n.ctx, ast.Load)}


@every_rendering
def test_a_module_asserts_nothing(name: str) -> None:
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree_of(name)))


@every_rendering
def test_a_kernel_asks_only_whether_a_pointer_is_there_or_aligned(name) -> None:
    """What the spec fixes is straight-line code, or absent."""
    for kernel in modules.kernels(tree_of(name)):
        for node in ast.walk(kernel):
            assert not isinstance(node, ast.While)
            if isinstance(node, ast.IfExp):  # of the call, and known when it compiles
                assert modules.loaded(node.test) == {"ALIGNMENT"}
            if isinstance(node, ast.If):
                assert re.fullmatch(r"\w+_ptr is not None", ast.unparse(node.test))
                assert not node.orelse


@every_rendering
def test_no_host_function_asks_for_what_the_spec_fixes(name: str) -> None:
    """A condition reads at least one name that only the call can tell."""
    constant = {n for n in modules.defined(tree_of(name)) if n.isupper()}
    for function in modules.functions(tree_of(name)):
        for node in ast.walk(function):
            if isinstance(node, ast.If | ast.IfExp):
                assert modules.loaded(node.test) - constant, ast.unparse(node.test)


@every_rendering
def test_a_kernel_documents_each_argument_but_strides_in_order(name: str) -> None:
    for kernel in modules.kernels(tree_of(name)):
        docstring = ast.get_docstring(kernel) or ""
        listed = re.findall(
            r"^    (\w+): ", docstring.split("Args:\n")[1], re.MULTILINE
        )
        names = [a.arg for a in modules.parameters(kernel)]
        assert listed == [n for n in names if not n.endswith("_row_stride")]


@every_rendering
def test_what_is_compiled_is_a_kernel_or_a_function_of_values(name: str) -> None:
    for function in modules.functions(tree_of(name)):
        if modules.is_jitted(function) and not modules.is_kernel(function):
            assert not any(a.arg.endswith("_ptr") for a in modules.parameters(function))
            assert "tl.load" not in ast.unparse(function)
            assert TEXTS[name].count(f"{function.name}(") > 1


@every_rendering
def test_a_kernel_is_told_its_constexprs_last(name: str) -> None:
    for kernel in modules.kernels(tree_of(name)):
        flags = [modules.is_constexpr(a) for a in modules.parameters(kernel)]
        assert flags == sorted(flags)
        for argument, flag in zip(modules.parameters(kernel), flags, strict=True):
            assert argument.arg.isupper() == flag


@every_rendering
def test_public_functions_and_modules_have_docstrings(name: str) -> None:
    for function in modules.functions(tree_of(name)):
        in_autograd = function.name in ("forward", "backward", "__init__")
        assert ast.get_docstring(function) or in_autograd, function.name
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.ClassDef) and node.name not in ("tl", "triton"):
            assert ast.get_docstring(node), node.name


@every_rendering
def test_the_docstring_names_every_argument_result_and_error(name: str) -> None:
    tree = tree_of(name)
    for function in modules.functions(tree):
        if function.name not in modules.exported(tree):
            continue
        if function.name.endswith("_reference"):
            continue
        docstring = ast.get_docstring(function) or ""
        listed = re.findall(r"^    (\w+): ", docstring, re.MULTILINE)
        arguments = [a.arg for a in modules.parameters(function)]
        assert listed[: len(arguments)] == arguments
        assert listed[-2:] == ["TypeError", "ValueError"]
        results = listed[len(arguments) : -2]
        annotation = ast.unparse(function.returns) if function.returns else ""
        assert len(results) == annotation.count("torch.Tensor")


@every_rendering
def test_the_docstring_speaks_of_a_backward_pass_where_there_is_one(name: str) -> None:
    docstring = ast.get_docstring(tree_of(name)) or ""
    has_backward = any("_bwd_" in k.name for k in modules.kernels(tree_of(name)))
    assert ("backward" in docstring.split("\n")[0]) == has_backward
