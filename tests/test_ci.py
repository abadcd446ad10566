"""The hooks and the CI snippet that ship with normgen name commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from normgen import cli
from normgen.build import FOREIGN
from normgen.commands import COMMANDS

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


def load(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def hooks() -> list[dict[str, Any]]:
    return list(
        load((REPOSITORY / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    )


def parses(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "normgen"
    cli._parser(arguments).parse_args(arguments)


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_a_hook_runs_a_command_on_the_whole_project(hook: dict[str, Any]) -> None:
    parses(hook["entry"])
    assert hook["id"] == hook["entry"].replace(" ", "-")
    assert hook["pass_filenames"] is False
    assert hook["language"] == "python"
    for name in ("specs/llama.yaml", "generated/llama.py", "pyproject.toml"):
        assert re.search(hook["files"], name)
    assert not re.search(hook["files"], "README.md")


def test_there_are_hooks_to_check_and_to_render() -> None:
    assert [hook["id"] for hook in hooks()] == ["normgen-check", "normgen-render"]


def test_the_workflow_runs_check_with_annotations() -> None:
    workflow = load(SNIPPETS[0])
    steps = workflow["jobs"]["check"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == ["pip install normgen", "normgen check --format github"]
    parses(commands[-1])


def test_the_pre_commit_snippet_names_hooks_that_exist() -> None:
    (repository,) = load(SNIPPETS[1])["repos"]
    named = {hook["id"] for hook in repository["hooks"]}
    assert named <= {hook["id"] for hook in hooks()}


def test_the_page_names_every_kind_of_finding() -> None:
    for kind in ("missing", "stale", "edited", "foreign", "orphan"):
        assert f"| {kind} |" in PAGE


def test_every_command_has_its_module() -> None:
    folder = REPOSITORY / "normgen" / "commands"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(COMMANDS) == modules


def test_the_pre_commit_snippet_checks_before_it_renders() -> None:
    """pre-commit does not see that render wrote a file that git does not know yet."""
    (repository,) = load(SNIPPETS[1])["repos"]
    named = [hook["id"] for hook in repository["hooks"]]
    assert named == ["normgen-check", "normgen-render"]
    (render,) = (hook for hook in hooks() if hook["id"] == "normgen-render")
    assert "git tracks" in render["description"]
    assert "normgen-check" in render["description"]


def test_the_page_and_the_message_say_the_same_of_a_foreign_file() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| foreign |"))
    for words in ("move it away", "--force"):
        assert words in row
        assert words in FOREIGN
