"""The modules of this repository are fresh, and the same on every machine."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from renderings import GENERATED, ROOT, SPECS, repository_norms, spec_of, texts
from support.build import text_of

from normgen import header
from normgen.build import build
from normgen.config import jobs_of
from normgen.render import render_body


def test_every_spec_has_its_module_and_every_module_its_spec() -> None:
    modules = {path.stem for path in GENERATED.glob("*.py")}
    assert modules == {path.stem for path in SPECS}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_generated_file_is_fresh(path: Path) -> None:
    (job,) = jobs_of([path])
    there = (GENERATED / f"{path.stem}.py").read_bytes()
    assert there == build(job).text.encode()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_header_of_a_generated_file_tells_the_truth(path: Path) -> None:
    text = (GENERATED / f"{path.stem}.py").read_text(encoding="utf-8")
    found = header.parse(text)
    assert found is not None
    assert header.verify(found)
    assert found.spec == f"specs/{path.name}"
    assert found.command == f"normgen render specs/{path.name}"
    body = render_body(spec_of(path))
    assert found.body == body.text
    assert found.spec_hash == header.spec_digest(spec_of(path))
    assert found.template_hash == header.template_digest(body.templates)


def test_no_generated_file_names_a_machine_a_person_or_a_day() -> None:
    for path in GENERATED.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in (str(ROOT), str(Path.home()), os.uname().nodename):
            assert word not in text
        assert not re.search(r"\b20\d\d\b", text.split('"""')[0])


def test_rendering_twice_gives_equal_bytes() -> None:
    norms = list(repository_norms().values())
    assert [text_of(norm) for norm in norms] == [text_of(norm) for norm in norms]


def test_a_norm_is_the_same_text_whatever_was_rendered_before() -> None:
    norms = list(repository_norms().values())
    ahead = {norm: text_of(norm) for norm in norms}
    behind = {norm: text_of(norm) for norm in reversed(norms)}
    assert ahead == behind


PRINT_HASHES = """
import hashlib, json, pathlib, sys
from normgen.build import build
from normgen.config import jobs_of
jobs = jobs_of([pathlib.Path(path) for path in sys.argv[1:]])
texts = {job.spec.stem: build(job).text.encode() for job in jobs}
print(json.dumps({name: hashlib.sha256(t).hexdigest() for name, t in texts.items()}))
assert "torch" not in sys.modules and "triton" not in sys.modules
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo", "COLUMNS": "40"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "tr_TR.UTF-8", "TZ": "America/New_York"},
    ],
    ids=str,
)
def test_another_process_renders_equal_bytes(environment, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_HASHES, *map(str, SPECS)],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    here = {
        path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in GENERATED.glob("*.py")
    }
    assert json.loads(done.stdout) == here


IMPORT_ALL = """
import importlib.util, sys, warnings
import torch
try:
    import triton, triton.language
except ImportError:
    pass
warnings.simplefilter("error")
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert all(hasattr(module, name) for name in module.__all__)
print("done")
"""


@pytest.mark.parametrize("flags", [["-O"], ["-OO", "-bb"]], ids=" ".join)
def test_generated_files_import_without_a_warning(flags, tmp_path: Path) -> None:
    files = sorted(map(str, GENERATED.glob("*.py")))
    done = subprocess.run(
        [sys.executable, *flags, "-c", IMPORT_ALL, *files],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_every_rendering_compiles_without_a_warning(optimize: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, text in texts().items():
            compile(text, name, "exec", optimize=optimize)


def test_a_module_imports_torch_and_triton_only() -> None:
    for name, text in texts().items():
        imported = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(str(node.module).split(".")[0])
        assert imported == {"torch", "triton"}, name
