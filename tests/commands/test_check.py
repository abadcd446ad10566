"""``normgen check`` and ``normgen diff``: findings, and that nothing is written."""

from __future__ import annotations

import errno
import json
import os
import shlex
from pathlib import Path

import pytest
from command_line import SPEC, Renderer, Run, snapshot


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


def vendor(root: Path, place: Path) -> Path:
    """A copy of the project's module, edited by hand."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes((root / "generated" / "llama.py").read_bytes() + b"x = 1\n")
    return place


def command_of(out: str) -> list[str]:
    return shlex.split(out.strip().rpartition("; run: normgen ")[2])


def test_the_advice_for_an_edited_copy_mends_that_copy(root: Path, run: Run) -> None:
    run("render")
    before = (root / "generated" / "llama.py").read_bytes()
    vendor(root, root / "src" / "norms.py")
    status, out, _ = run("check", "src/norms.py")
    assert status == 1
    assert out.endswith(
        "; run: normgen render specs/llama.yaml -o src/norms.py --force\n"
    )
    assert run(*command_of(out))[0] == 0
    assert (root / "generated" / "llama.py").read_bytes() == before
    assert run("check", "src/norms.py")[0] == 0


def test_the_spec_of_an_edited_copy_is_also_sought_in_the_working_folder(
    root: Path, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run("render")
    copy = vendor(root, tmp_path_factory.mktemp("vendored") / "norms.py")
    out = run("check", str(copy))[1]
    assert run(*command_of(out))[0] == 0
    assert run("check", str(copy))[0] == 0


def test_an_edited_copy_without_its_spec_is_to_be_copied_afresh(
    root: Path, run: Run
) -> None:
    run("render")
    vendor(root, root / "src" / "norms.py")
    spec = root / "specs" / "llama.yaml"
    spec.write_text(SPEC.replace("1e-5", "1e-6"))  # another spec of that name
    changed = run("check", "src/norms.py")
    spec.unlink()
    gone = run("check", "src/norms.py")
    expected = (
        "src/norms.py: edited: it was changed by hand since normgen made it from "
        "specs/llama.yaml; copy it afresh, or render it again from its spec\n"
    )
    assert changed == gone == (1, expected, "")
    out = run("check", "src/norms.py", "--format", "json")[1]
    assert json.loads(out)["findings"][0]["command"] is None


def test_a_damaged_command_in_a_header_is_no_crash(root: Path, run: Run) -> None:
    run("render")
    copy = vendor(root, root / "src" / "norms.py")
    copy.write_text(copy.read_text().replace("specs/llama.yaml\n", "'specs\n"))
    assert run("check", "src/norms.py")[0] == 1


def test_a_module_whose_spec_is_no_job_is_checked_with_its_spec(
    root: Path, run: Run
) -> None:
    run("render")
    (root / "my.yaml").write_text(SPEC)
    assert run("render", "my.yaml") == (0, "wrote generated/my.py\n", "")
    assert run("check") == (0, "2 files are up to date\n", "")
    (root / "my.yaml").write_text(SPEC.replace("1e-5", "1e-6"))
    status, out, _ = run("check")
    assert status == 1
    assert out == (
        "generated/my.py: stale: the spec changed; run: normgen render my.yaml\n"
    )
    (root / "my.yaml").unlink()
    out = run("check")[1]
    assert out.startswith("generated/my.py: orphan: ")
    assert out.endswith("; run: rm generated/my.py\n")


def test_a_module_left_where_its_job_was_is_no_orphan_either(
    root: Path, run: Run
) -> None:
    run("render")
    (root / "pyproject.toml").write_text(
        '[tool.normgen.jobs]\n"specs/llama.yaml" = "src/norms.py"\n'
    )
    run("render")
    for arguments in ((), ("generated/llama.py",)):
        status, out, _ = run("check", *arguments)
        assert status == 1
        assert out == (
            "generated/llama.py: stale: it was made for another place, by "
            '"normgen render specs/llama.yaml"; run: normgen render '
            "specs/llama.yaml -o generated/llama.py\n"
        )
    assert run(*command_of(out))[0] == 0
    assert run("check")[0] == 0


def test_a_link_to_a_module_is_no_second_one(root: Path, run: Run) -> None:
    run("render")
    (root / "generated" / "alias.py").symlink_to("llama.py")
    assert run("check") == (0, "1 file is up to date\n", "")


def test_two_names_of_one_spec_make_each_its_module(root: Path, run: Run) -> None:
    (root / "specs" / "mistral.yaml").symlink_to("llama.yaml")
    run("render")
    (root / "generated" / "mistral.py").unlink()
    out = run("check")[1]
    assert run(*command_of(out)) == (0, "wrote generated/mistral.py\n", "")
    assert run("check")[0] == 0


def test_a_foreign_file_is_to_be_moved_away_or_overwritten(
    root: Path, run: Run
) -> None:
    (root / "generated").mkdir()
    (root / "generated" / "llama.py").write_text("import this\n")
    out = run("check")[1]
    assert out == (
        "generated/llama.py: foreign: the file there was not made by normgen; move it "
        "away first, or overwrite it with --force; "
        "run: normgen render specs/llama.yaml\n"
    )


def test_paths_are_those_that_are_typed_in_the_working_folder(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "specs" / "bad.yaml").write_text("version: 1\n")
    monkeypatch.chdir(root / "specs")
    _, out, err = run("check")
    assert out.startswith("../generated/llama.py: missing: ")
    assert err == "bad.yaml:1:1: kernels: required field is missing\n"
    (root / "specs" / "bad.yaml").unlink()
    assert run("render") == (0, "wrote ../generated/llama.py\n", "")
    assert "from specs/llama.yaml." in (root / "generated" / "llama.py").read_text()
    (root / "specs" / "llama.yaml").unlink()
    assert run("check")[1].startswith("../generated/llama.py: orphan: ")
    (root / "pyproject.toml").write_text("[tool.normgen]\njobs = 1\n")
    assert run("check")[2].startswith("../pyproject.toml: tool.normgen.jobs: ")


def test_a_folder_of_specs_that_cannot_be_read_makes_no_orphans(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("render")
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        if Path(path).name == "specs":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert run("check") == (2, "", "specs: cannot be read: Permission denied\n")


def test_a_folder_that_may_not_be_searched_is_a_problem_of_the_spec(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, real = root / "specs", os.stat

    def deny(path: object) -> None:
        if isinstance(path, str | Path) and locked in (root / path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def stat(path: object, *args: object, **kwargs: object) -> object:
        deny(path)
        return real(path, *args, **kwargs)  # type: ignore[arg-type, call-overload]

    def read_bytes(path: Path) -> bytes:
        deny(path)
        return b""

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    expected = "specs/llama.yaml: cannot be read: Permission denied\n"
    for command in ("check", "render", "diff", "explain"):
        assert run(command, "specs/llama.yaml") == (2, "", expected)


def test_diff_in_json_is_one_document(root: Path, run: Run) -> None:
    plain = run("diff")[1]
    status, out, _ = run("diff", "--format", "json")
    assert status == 1
    assert json.loads(out)["diffs"] == [{"path": "generated/llama.py", "diff": plain}]
    run("render")
    assert json.loads(run("diff", "--format", "json")[1])["diffs"] == []
