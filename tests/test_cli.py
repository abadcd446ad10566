"""The commands as they are typed: what they print, write and return."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from normgen import cli
from normgen.commands import COMMANDS
from normgen.errors import NormgenError, Problem

REPOSITORY = Path(__file__).parent.parent
SPEC = """\
version: 1
kernels:
  - name: rms_norm
    variant: rms_norm
    hidden_size: 4096
    eps: 1e-5
"""
Run = Callable[..., tuple[int, str, str]]


class Renderer:
    """Stands in for normgen.render, so that a test can change what it makes."""

    suffix = ""
    template = "source"

    def render_body(self, spec: object) -> SimpleNamespace:
        kernels = spec.kernels  # type: ignore[attr-defined]
        lines = [f"{norm.name} = {norm.eps!r}\n" for norm in kernels]
        return SimpleNamespace(
            text='"""Norms."""\n\n' + "".join(lines) + self.suffix,
            templates={"module.py.jinja": self.template},
        )


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


def snapshot(root: Path) -> dict[Path, tuple[bytes, int]]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def process(*argv: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "normgen", *argv],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        check=False,
    )


# render


def test_render_writes_every_job_and_says_so_once(root: Path, run: Run) -> None:
    assert run("render") == (0, "wrote generated/llama.py\n", "")
    before = snapshot(root)
    assert run("render") == (0, "unchanged generated/llama.py\n", "")
    assert snapshot(root) == before


def test_a_bad_spec_among_good_ones_writes_nothing(root: Path, run: Run) -> None:
    (root / "specs" / "bad.yaml").write_text(SPEC.replace("eps", "epss"))
    (root / "specs" / "worse.yaml").write_text("version: 1\n")
    status, out, err = run("render")
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        'specs/bad.yaml:6:5: kernels[0].epss: unknown field; did you mean "eps"?',
        "specs/worse.yaml:1:1: kernels: required field is missing",
    ]
    assert not (root / "generated").exists()


def test_a_problem_that_rendering_finds_is_told_as_one(
    run: Run, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: object) -> None:
        raise NormgenError(Problem("specs/llama.yaml", "no strategy takes it", 3, 5))

    monkeypatch.setattr(sys.modules["normgen.render"], "render_body", refuse)
    assert run("render") == (2, "", "specs/llama.yaml:3:5: no strategy takes it\n")


def test_stdout_prints_what_would_be_written(root: Path, run: Run) -> None:
    status, text, err = run("render", "specs/llama.yaml", "--stdout")
    assert (status, err) == (0, "")
    assert not (root / "generated").exists()
    run("render")
    assert (root / "generated" / "llama.py").read_text() == text


def test_stdout_takes_one_spec(root: Path, run: Run) -> None:
    (root / "specs" / "b.yaml").write_text(SPEC)
    assert run("render", "--stdout") == (2, "", "--stdout: takes one spec, got 2\n")


def test_an_edited_file_is_kept_unless_forced(root: Path, run: Run) -> None:
    run("render")
    path = root / "generated" / "llama.py"
    edited = path.read_text() + "# mine\n"
    path.write_text(edited)
    status, out, err = run("render")
    assert (status, out) == (2, "")
    assert err.startswith("generated/llama.py: not written: edited: ")
    assert err.endswith("run: normgen render specs/llama.yaml --force\n")
    assert path.read_text() == edited
    assert run("render", "--force")[0] == 0
    assert "mine" not in path.read_text()


def test_a_file_of_someone_else_is_kept_unless_forced(root: Path, run: Run) -> None:
    path = root / "generated" / "llama.py"
    path.parent.mkdir()
    path.write_text("import this\n")
    status, _, err = run("render")
    assert status == 2
    assert "was not made by normgen" in err
    assert path.read_text() == "import this\n"
    assert run("render", "--force") == (0, "wrote generated/llama.py\n", "")


def test_one_guarded_file_stops_the_others_too(root: Path, run: Run) -> None:
    (root / "specs" / "a.yaml").write_text(SPEC)
    (root / "generated").mkdir()
    (root / "generated" / "llama.py").write_text("import this\n")
    assert run("render")[0] == 2
    assert not (root / "generated" / "a.py").exists()


def test_a_folder_in_the_place_of_a_module_is_an_error(root: Path, run: Run) -> None:
    (root / "generated" / "llama.py").mkdir(parents=True)
    for command in ("render", "check", "diff"):
        status, _, err = run(command)
        assert status == 2
        assert err == "generated/llama.py: cannot be read: Is a directory\n"


def test_output_to_a_file_is_in_the_recorded_command(root: Path, run: Run) -> None:
    assert run("render", "specs/llama.yaml", "-o", "src/norms.py")[0] == 0
    lines = (root / "src" / "norms.py").read_text().splitlines()
    assert lines[1] == "# Regenerate: normgen render specs/llama.yaml -o src/norms.py"


def test_output_where_the_job_has_it_anyway_is_not_recorded(
    root: Path, run: Run
) -> None:
    run("render", "specs/llama.yaml", "-o", "generated/llama.py")
    assert run("render") == (0, "unchanged generated/llama.py\n", "")


def test_output_outside_the_project_leaves_no_trace_of_the_machine(
    root: Path, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "norms.py"
    assert run("render", "specs/llama.yaml", "-o", str(outside))[0] == 0
    assert outside.read_text() == run("render", "specs/llama.yaml", "--stdout")[1]


@pytest.mark.parametrize("made", [True, False])
def test_output_to_a_folder_takes_the_names_of_the_specs(
    root: Path, run: Run, made: bool
) -> None:
    (root / "specs" / "b.yaml").write_text(SPEC)
    if made:
        (root / "out").mkdir()
    assert run("render", "-o", "out" if made else "out/")[0] == 0
    assert sorted(path.name for path in (root / "out").iterdir()) == [
        "b.py",
        "llama.py",
    ]


def test_output_that_is_neither_file_nor_folder_is_refused(
    root: Path, run: Run
) -> None:
    status, _, err = run("render", "-o", "out")
    assert (status, err) == (
        2,
        "-o out: ends in neither .py nor /; write out/ for a folder\n",
    )
    (root / "specs" / "b.yaml").write_text(SPEC)
    status, _, err = run("render", "-o", "x.py")
    assert status == 2
    assert err.startswith("-o x.py: names one file for 2 specs")


def test_two_specs_to_one_module_are_refused(root: Path, run: Run) -> None:
    (root / "more").mkdir()
    (root / "more" / "llama.yaml").write_text(SPEC)
    status, _, err = run("render", "specs/llama.yaml", "more/llama.yaml")
    assert status == 2
    assert err.startswith("more/llama.yaml: generated/llama.py is also the output of")


def test_two_specs_to_one_file_of_a_folder_are_refused(root: Path, run: Run) -> None:
    (root / "pyproject.toml").write_text(
        '[tool.normgen.jobs]\n"a/x.yaml" = "a.py"\n"b/x.yaml" = "b.py"\n'
    )
    status, _, err = run("render", "-o", "out/")
    assert (status, err) == (2, "b/x.yaml: out/x.py is also the output of a/x.yaml\n")


def test_no_working_folder_and_no_order_of_names_changes_a_byte(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("render")
    before = (root / "generated" / "llama.py").read_bytes()
    monkeypatch.chdir(root / "specs")
    assert run("render", "llama.yaml") == (0, "unchanged generated/llama.py\n", "")
    run("render", "llama.yaml", "--force")
    assert (root / "generated" / "llama.py").read_bytes() == before


# check


def test_check_after_render_finds_nothing_and_writes_nothing(
    root: Path, run: Run
) -> None:
    run("render")
    before = snapshot(root)
    assert run("check") == (0, "1 file is up to date\n", "")
    assert snapshot(root) == before


def test_a_missing_module_is_found_with_the_command_that_makes_it(run: Run) -> None:
    status, out, _ = run("check")
    assert status == 1
    assert out.startswith("generated/llama.py: missing: ")
    assert out.endswith("; run: normgen render specs/llama.yaml\n")


def test_a_stale_module_says_why(root: Path, run: Run, renderer: Renderer) -> None:
    run("render")
    spec = root / "specs" / "llama.yaml"
    spec.write_text(SPEC.replace("1e-5", "1e-6"))
    assert "stale: the spec changed; run" in run("check")[1]
    renderer.template = "other"
    assert "stale: the spec and the templates changed; run" in run("check")[1]
    spec.write_text(SPEC)
    assert "stale: the templates changed; run" in run("check")[1]
    renderer.template = Renderer.template
    renderer.suffix = "# more\n"
    assert "stale: normgen's output changed" in run("check")[1]
    renderer.suffix = ""
    assert run("check")[0] == 0


def test_a_header_that_was_changed_is_stale(root: Path, run: Run) -> None:
    run("render")
    path = root / "generated" / "llama.py"
    path.write_text(path.read_text().replace("# fmt: off\n", ""))
    assert "stale: its header differs" in run("check")[1]


def test_comments_and_spelling_in_the_spec_make_nothing_stale(
    root: Path, run: Run
) -> None:
    run("render")
    (root / "specs" / "llama.yaml").write_text(
        "# é\n" + SPEC.replace("1e-5", "1.0E-05")
    )
    assert run("check")[0] == 0


def test_another_version_of_normgen_makes_nothing_stale(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("render")
    monkeypatch.setattr("normgen.build.__version__", "9.9.9")
    assert run("check")[0] == 0
    assert run("diff") == (0, "", "")
    assert run("render") == (0, "unchanged generated/llama.py\n", "")


def test_windows_line_ends_make_nothing_stale(root: Path, run: Run) -> None:
    run("render")
    path = root / "generated" / "llama.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert run("check")[0] == 0
    assert run("diff")[0] == 0


def test_an_edit_is_told_from_a_change_of_the_spec(root: Path, run: Run) -> None:
    run("render")
    path = root / "generated" / "llama.py"
    path.write_text(path.read_text().replace("1e-05", "1e-04"))
    status, out, _ = run("check")
    assert status == 1
    assert out.startswith("generated/llama.py: edited: ")
    assert out.endswith("; run: normgen render specs/llama.yaml --force\n")


def test_an_orphan_is_found_and_other_files_are_left_alone(
    root: Path, run: Run
) -> None:
    run("render")
    generated = root / "generated"
    (generated / "__init__.py").write_text("")
    (generated / "own.py").write_text("import this\n")
    (root / "specs" / "llama.yaml").rename(root / "specs" / "qwen.yaml")
    run("render")
    status, out, _ = run("check")
    assert status == 1
    assert out.startswith("generated/llama.py: orphan: ")
    assert out.endswith("; run: rm generated/llama.py\n")
    assert len(out.splitlines()) == 1


def test_the_last_spec_gone_leaves_an_orphan(root: Path, run: Run) -> None:
    run("render")
    (root / "specs" / "llama.yaml").unlink()
    assert run("check")[0] == 1
    (root / "generated" / "llama.py").unlink()
    status, _, err = run("check")
    assert (status, "no specs" in err) == (2, True)


def test_an_error_outweighs_findings_and_hides_none(root: Path, run: Run) -> None:
    (root / "specs" / "bad.yaml").write_text("version: 1\n")
    status, out, err = run("check")
    assert status == 2
    assert out.startswith("generated/llama.py: missing")
    assert err.startswith("specs/bad.yaml:1:1: ")


def test_the_named_command_is_right_where_it_is_read(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "specs")
    assert run("check")[1].endswith("; run: normgen render llama.yaml\n")


def test_check_takes_a_spec_or_its_module(root: Path, run: Run) -> None:
    run("render")
    (root / "specs" / "other.yaml").write_text(SPEC)
    assert run("check", "specs/llama.yaml")[0] == 0
    assert run("check", "generated/llama.py")[0] == 0
    (root / "specs" / "llama.yaml").write_text(SPEC.replace("1e-5", "1e-6"))
    assert "the spec changed" in run("check", "generated/llama.py")[1]


def test_a_module_that_output_put_elsewhere_is_checked_with_its_spec(
    root: Path, run: Run
) -> None:
    run("render", "specs/llama.yaml", "-o", "src/norms.py")
    assert run("check", "src/norms.py")[0] == 0
    (root / "specs" / "llama.yaml").write_text(SPEC.replace("1e-5", "1e-6"))
    status, out, _ = run("check", "src/norms.py")
    assert status == 1
    assert out.endswith("; run: normgen render specs/llama.yaml -o src/norms.py\n")


def test_a_vendored_module_is_checked_without_its_spec(
    root: Path, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run("render")
    copy = tmp_path_factory.mktemp("vendored") / "norms.py"
    copy.write_bytes((root / "generated" / "llama.py").read_bytes())
    assert run("check", str(copy)) == (0, "1 file is up to date\n", "")
    copy.write_text(copy.read_text() + "x = 1\n")
    status, out, _ = run("check", str(copy))
    assert status == 1
    assert "changed by hand" in out


def test_a_file_without_header_cannot_be_checked(root: Path, run: Run) -> None:
    (root / "x.py").write_text("import this\n")
    status, _, err = run("check", "x.py")
    assert (status, err) == (2, "x.py: not made by normgen: it has no header\n")
    assert run("check", "gone.py") == (2, "", "gone.py: no such file\n")


# diff


def test_diff_shows_what_render_would_change(root: Path, run: Run) -> None:
    status, out, _ = run("diff")
    assert status == 1
    assert out.startswith("--- /dev/null\n+++ b/generated/llama.py\n")
    run("render")
    assert run("diff") == (0, "", "")
    (root / "specs" / "llama.yaml").write_text(SPEC.replace("1e-5", "1e-6"))
    status, out, _ = run("diff", "specs/llama.yaml")
    assert status == 1
    assert "\n-rms_norm = 1e-05\n+rms_norm = 1e-06\n" in out


def test_a_diff_of_a_file_without_a_last_line_end_says_so(root: Path, run: Run) -> None:
    run("render")
    path = root / "generated" / "llama.py"
    path.write_text(path.read_text().rstrip("\n"))
    out = run("diff")[1]
    assert "-rms_norm = 1e-05\n\\ No newline at end of file\n+rms_norm = 1e-05\n" in out


def test_diff_of_a_bad_spec_is_an_error(root: Path, run: Run) -> None:
    (root / "specs" / "llama.yaml").write_text("version: 1\n")
    assert run("diff")[0] == 2


# formats


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


# the frame


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
    spec = tmp_path / "spécs 层.yaml"
    spec.write_text("# größer 🎉\n" + SPEC, encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    expected = process("render", str(spec), "--stdout", PYTHONUTF8="1")
    assert expected.returncode == 0
    printed = process("render", str(spec), "--stdout", **plain)
    assert printed.stdout == expected.stdout
    written = process("render", str(spec), **plain)
    assert written.returncode == 0, written.stderr
    made = tmp_path / "generated" / "spécs 层.py"
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
