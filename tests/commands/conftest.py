"""A project in a temporary folder, and the command line run inside it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from command_line import SPEC, Renderer, Run

from normgen import cli


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    renderer, module = Renderer(), ModuleType("normgen.render")
    module.render_body = renderer.render_body  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "normgen.render", module)
    return renderer


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> Path:
    """A project with one spec, and the working folder."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "llama.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = cli.main(argv)
        except SystemExit as usage:
            assert isinstance(usage.code, int)
            status = usage.code
        return status, *capsys.readouterr()

    return run
