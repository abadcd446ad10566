"""``normgen render``: what it prints, writes and returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import SPEC, Renderer, Run, snapshot

from normgen.errors import NormgenError, Problem


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
    assert run("render", "llama.yaml") == (0, "unchanged ../generated/llama.py\n", "")
    run("render", "llama.yaml", "--force")
    assert (root / "generated" / "llama.py").read_bytes() == before


def test_an_empty_output_is_refused(root: Path, run: Run) -> None:
    expected = "-o: names neither a file nor a folder\n"
    assert run("render", "specs/llama.yaml", "-o", "") == (2, "", expected)
    assert not list(root.glob("*.py"))


@pytest.mark.parametrize(
    ("stem", "reason"),
    [
        ("1norm", '"1norm" is no Python identifier'),
        ("my-norm", '"my-norm" is no Python identifier'),
        ("x y", '"x y" is no Python identifier'),
        ("qwen2.5", '"qwen2.5" is no Python identifier'),
        ("class", '"class" is a Python keyword'),
    ],
)
def test_a_module_that_nobody_could_import_is_refused(
    root: Path, run: Run, stem: str, reason: str
) -> None:
    expected = (
        2,
        "",
        f"specs/llama.yaml: src/{stem}.py could not be imported: {reason}; "
        "name another with -o or in [tool.normgen.jobs]\n",
    )
    assert run("render", "specs/llama.yaml", "-o", f"src/{stem}.py") == expected
    assert not (root / "src").exists()
    (root / "specs" / f"{stem}.yaml").write_text(SPEC)
    for command in ("render", "check", "diff"):
        status, _, err = run(command)
        assert status == 2
        assert err.startswith(f"specs/{stem}.yaml: generated/{stem}.py could not be")
    assert run("render", f"specs/{stem}.yaml", "-o", "src/good.py")[0] == 0
    assert run("render", f"specs/{stem}.yaml", "--stdout")[0] == 0


def test_a_module_given_for_a_spec_is_named_as_one(root: Path, run: Run) -> None:
    run("render")
    (root / "own.py").write_text('# c\n"""Doc."""\n\nimport this\n')
    for command in ("render", "diff", "explain"):
        assert run(command, "own.py") == (
            2,
            "",
            "own.py: is a Python file, expected a spec (YAML)\n",
        )
        assert run(command, "generated/llama.py") == (
            2,
            "",
            "generated/llama.py: is a Python file, expected a spec (YAML); "
            "it was made from specs/llama.yaml\n",
        )


def test_a_module_to_standard_output_is_no_json(run: Run) -> None:
    status, out, _ = run("render", "--stdout", "--format", "json")
    assert status == 2
    assert json.loads(out)["problems"][0]["path"] == "--stdout"


def test_a_missing_spec_of_the_table_is_told_at_its_entry(root: Path, run: Run) -> None:
    (root / "pyproject.toml").write_text('[tool.normgen.jobs]\n"./a.yaml" = "a.py"\n')
    expected = (
        'pyproject.toml: tool.normgen.jobs."./a.yaml": no such file; '
        "correct the path, or remove the entry\n"
    )
    for command in ("render", "check", "diff", "explain"):
        assert run(command) == (2, "", expected)
        assert run(command, "a.yaml") == (2, "", expected)


def test_no_spec_is_overwritten_even_by_force(root: Path, run: Run) -> None:
    spec = root / "specs" / "llama.yaml"
    (root / "norms.py").write_text(spec.read_text())
    assert run("render", "norms.py", "-o", "norms.py", "--force")[0] == 2
    (root / "pyproject.toml").write_text(
        '[tool.normgen.jobs]\n"norms.py" = "a.py"\n"specs/llama.yaml" = "norms.py"\n'
    )
    status, _, errors = run("render", "--force")
    assert status == 2
    assert "the output is a spec" in errors
    assert (root / "norms.py").read_text() == spec.read_text()
