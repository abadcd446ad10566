"""The frame of the command line: formats, errors, and what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import REPOSITORY, SPEC, Run, process

from normgen.commands import COMMANDS


def test_json_is_one_document_whatever_happens(root: Path, run: Run) -> None:
    status, out, err = run("check", "--format", "json")
    assert (status, err) == (1, "")
    (finding,) = json.loads(out)["findings"]
    assert finding["kind"] == "missing"
    assert finding["path"] == "generated/llama.py"
    assert finding["command"] == "normgen render specs/llama.yaml"
    out = run("render", "--format", "json")[1]
    assert json.loads(out)["files"] == {"generated/llama.py": "wrote"}
    out = run("check", "--format", "json")[1]
    assert json.loads(out) == {"problems": [], "findings": []}
    (root / "specs" / "llama.yaml").write_text(SPEC.replace("eps", "epss"))
    for command in ("render", "check", "diff"):
        status, out, err = run(command, "--format", "json")
        assert (status, err) == (2, "")
        (problem,) = json.loads(out)["problems"]
        assert (problem["path"], problem["line"], problem["column"]) == (
            "specs/llama.yaml",
            6,
            5,
        )


def test_github_annotations_have_place_and_message(root: Path, run: Run) -> None:
    out = run("check", "--format", "github")[1]
    assert out.startswith("::error file=generated/llama.py::missing: ")
    (root / "specs" / "a,b:100%.yaml").write_text("version: 1\n")
    out = run("check", "--format", "github")[1]
    assert out.startswith(
        "::error file=specs/a%2Cb%3A100%25.yaml,line=1,col=1::kernels: required"
    )


@pytest.mark.parametrize(
    "argv", [(), ("nonsense",), ("render", "--nonsense"), ("check", "--format", "xml")]
)
def test_a_wrong_command_line_is_an_error(run: Run, argv: tuple[str, ...]) -> None:
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert "usage: normgen" in err


def test_help_names_every_command(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)
    for name in COMMANDS:
        status, out, _ = run(name, "--help")
        assert status == 0
        assert "--format" in out


def test_a_bug_is_no_success_and_no_finding(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(spec: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sys.modules["normgen.render"], "render_body", crash)
    for command in ("render", "check", "diff"):
        status, _, err = run(command)
        assert status == 2
        assert "ZeroDivisionError" in err
        assert "bug in normgen" in err


def test_an_interruption_has_the_status_that_shells_give_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(spec: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["normgen.render"], "render_body", interrupt)
    assert run("render") == (130, "", "")


def test_help_and_version_load_nothing_heavy() -> None:
    script = (
        "import sys\nfrom normgen.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "names = {'pydantic', 'jinja2', 'ruamel', 'ruamel.yaml', 'yaml', 'torch'}\n"
        "print(sorted(names & set(sys.modules)), file=sys.stderr)\n"
    )
    for argv in (["--help"], ["--version"], ["render", "--help"], ["check", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *argv],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=True,
        )
        assert done.stderr == "[]\n"
        assert done.stdout


def test_the_way_from_spec_to_check_loads_neither_torch_nor_triton(
    tmp_path: Path,
) -> None:
    pytest.importorskip("normgen.render")
    script = (
        "import sys\nfrom normgen.cli import main\n"
        "assert main(['render']) == 0 and main(['check']) == 0\n"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))\n"
    )
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "llama.yaml").write_text(SPEC)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(os.name == "nt", reason="the locale is the system's there")
def test_no_locale_changes_a_byte(tmp_path: Path) -> None:
    pytest.importorskip("normgen.render")
    (tmp_path / ".git").mkdir()
    spec = tmp_path / "spécs_层.yaml"
    spec.write_text("# größer 🎉\n" + SPEC, encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    expected = process("render", str(spec), "--stdout", PYTHONUTF8="1")
    assert expected.returncode == 0
    printed = process("render", str(spec), "--stdout", **plain)
    assert printed.stdout == expected.stdout
    written = process("render", str(spec), **plain)
    assert written.returncode == 0, written.stderr
    made = tmp_path / "generated" / "spécs_层.py"
    assert made.read_bytes() == expected.stdout
    assert process("check", str(spec), **plain).returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
@pytest.mark.parametrize("option", ["schema", "--help"])
def test_a_closed_pipe_and_a_full_disk_on_stdout_are_no_traceback(option: str) -> None:
    command = [sys.executable, "-m", "normgen", option]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("PYTHONUNBUFFERED", None)  # argparse swallows what it then meets
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                command,
                stdout=full,
                stderr=subprocess.PIPE,
                env=environment,
                check=False,
            )
        assert done.returncode == 2
        assert b"No space left" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_annotations_are_placed_from_the_root_of_the_checkout(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(root.parent))
    monkeypatch.chdir(root / "specs")
    out = run("check", "--format", "github")[1]
    assert out.startswith(f"::error file={root.name}/generated/llama.py::missing: ")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(root / "elsewhere"))
    out = run("check", "--format", "github")[1]
    assert out.startswith("::error file=../generated/llama.py::missing: ")


def test_a_schema_overwrites_nothing_but_a_schema(root: Path, run: Run) -> None:
    path = root / "s.json"
    assert run("schema", "-o", "s.json") == (0, "wrote s.json\n", "")
    path.write_text(path.read_text().replace("Learned", "Old"))
    assert run("schema", "-o", "s.json") == (0, "wrote s.json\n", "")
    for text in ("mine\n", '{"title": "mine"}\n', "[]\n", ""):
        path.write_text(text)
        status, out, err = run("schema", "-o", "s.json")
        assert (status, out) == (2, "")
        assert err.startswith("s.json: not written: ")
        assert path.read_text() == text
    assert run("schema", "-o", "s.json", "--force") == (0, "wrote s.json\n", "")
    out = run("schema", "-o", "s.json", "--format", "json")[1]
    assert json.loads(out)["files"] == {"s.json": "unchanged"}


def test_a_schema_needs_the_name_of_a_file(run: Run) -> None:
    assert run("schema", "-o", "") == (2, "", "-o: names no file\n")


def test_a_package_that_is_missing_is_named_without_a_traceback(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    status, out, errors = run("check")
    assert (status, out) == (2, "")
    assert errors.startswith("normgen: ")
    assert "ruamel.yaml" in errors
    assert errors.count("\n") == 1
