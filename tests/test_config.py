"""Which root, which jobs, and what is said of a faulty pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.config import jobs_of, project_at, project_of, relative
from normgen.errors import NormgenError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two specs, and the working folder."""
    root = tmp_path / "project"
    (root / "specs").mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    for name in ("llama.yaml", "gpt2.yml", "normgen.schema.json", ".hidden.yaml"):
        (root / "specs" / name).write_text("")
    monkeypatch.chdir(root)
    return root


def configure(root: Path, text: str) -> None:
    (root / "pyproject.toml").write_text(text, encoding="utf-8")


def fault(root: Path, text: str) -> str:
    configure(root, text)
    with pytest.raises(NormgenError) as caught:
        project_at(root)
    return str(caught.value)


def test_without_configuration_each_spec_has_a_module_in_generated(root: Path) -> None:
    jobs = [(job.spec_name, job.output_name) for job in project_at(root).jobs]
    assert jobs == [
        ("specs/gpt2.yml", "generated/gpt2.py"),
        ("specs/llama.yaml", "generated/llama.py"),
    ]


def test_configured_jobs_are_the_only_ones_in_their_order(root: Path) -> None:
    configure(
        root,
        "[tool.normgen.jobs]\n"
        '"specs/llama.yaml" = "src/model/norms.py"\n'
        '"a.yaml" = "src/a.py"\n',
    )
    jobs = [(job.spec_name, job.output_name) for job in project_at(root).jobs]
    assert jobs == [("specs/llama.yaml", "src/model/norms.py"), ("a.yaml", "src/a.py")]


def test_an_empty_table_of_jobs_is_no_job(root: Path) -> None:
    configure(root, "[tool.normgen.jobs]\n")
    assert project_at(root).jobs == ()


def test_the_root_is_found_from_below(root: Path) -> None:
    below = root / "src" / "deep"
    below.mkdir(parents=True)
    assert project_at(below).root == root


def test_a_git_folder_marks_a_root_and_the_nearest_wins(root: Path) -> None:
    inner = root / "vendor" / "lib"
    (inner / ".git").mkdir(parents=True)
    (inner / "specs").mkdir()
    assert project_of(inner / "specs" / "x.yaml").root == inner


def test_the_root_of_a_spec_does_not_depend_on_the_working_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (job,) = jobs_of([Path("project/specs/llama.yaml")])
    assert (job.root, job.output_name) == (root, "generated/llama.py")
    assert job.recorded_command == "normgen render specs/llama.yaml"


def test_without_a_marked_root_it_is_the_working_folder_if_that_holds_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specs").mkdir()
    spec = tmp_path / "specs" / "x.yaml"
    monkeypatch.chdir(tmp_path)
    assert project_of(spec).root == tmp_path
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert project_of(spec).root == tmp_path / "specs"


def test_a_configured_spec_keeps_its_output_when_named_alone(root: Path) -> None:
    configure(root, '[tool.normgen.jobs]\n"specs/llama.yaml" = "src/norms.py"\n')
    jobs = jobs_of([Path("specs/../specs/llama.yaml"), Path("specs/gpt2.yml")])
    assert [job.output_name for job in jobs] == ["src/norms.py", "generated/gpt2.py"]


def test_a_spec_named_twice_is_one_job(root: Path) -> None:
    assert len(jobs_of([Path("specs/llama.yaml"), root / "specs" / "llama.yaml"])) == 1


def test_two_specs_of_one_stem_are_refused(root: Path) -> None:
    (root / "specs" / "llama.yml").write_text("")
    with pytest.raises(NormgenError) as caught:
        project_at(root)
    expected = (
        "specs/llama.yml: generated/llama.py is also the output of specs/llama.yaml"
    )
    assert str(caught.value) == expected


def test_no_spec_at_all_is_an_error_that_names_what_was_expected(root: Path) -> None:
    configure(root, "[tool.normgen.jobs]\n")
    with pytest.raises(NormgenError, match=r"no specs: expected specs/\*\.yaml or"):
        jobs_of([])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.normgen]\njob = 1\n", 'job: unknown key; did you mean "jobs"?'),
        ("[tool.normgen]\nspeed = 1\n", "speed: unknown key"),
        ("[tool.normgen]\njobs = 1\n", "jobs: expected a table of spec = output"),
        (
            '[tool.normgen.jobs]\n"a.yaml" = 3\n',
            'jobs."a.yaml": expected the path of the output as a string',
        ),
        (
            '[tool.normgen.jobs]\n"a.yaml" = "out"\n',
            'jobs."a.yaml": expected an output that ends in .py',
        ),
        (
            '[tool.normgen.jobs]\n"a.yaml" = "../a.py"\n',
            'jobs."a.yaml": expected a path inside the project, got "../a.py"',
        ),
        (
            '[tool.normgen.jobs]\n"/a.yaml" = "a.py"\n',
            'jobs."/a.yaml": expected a path inside the project, got "/a.yaml"',
        ),
        (
            '[tool.normgen.jobs]\n"a.yaml" = "src/my-norm.py"\n',
            'jobs."a.yaml": src/my-norm.py cannot be imported: '
            '"my-norm" is no Python identifier',
        ),
        (
            '[tool.normgen.jobs]\n"a.yaml" = "src/.py"\n',
            'jobs."a.yaml": src/.py cannot be imported: ".py" is no Python identifier',
        ),
        (
            '[tool.normgen.jobs]\n"a.yaml" = "a.py"\n"./a.yaml" = "b.py"\n',
            'jobs."./a.yaml": "a.yaml" is the same spec',
        ),
    ],
)
def test_a_faulty_table_is_named(root: Path, text: str, message: str) -> None:
    assert fault(root, text) == f"pyproject.toml: tool.normgen.{message}"


def test_two_jobs_with_one_output_are_refused(root: Path) -> None:
    text = '[tool.normgen.jobs]\n"a.yaml" = "o.py"\n"b.yaml" = "x/../o.py"\n'
    assert fault(root, text) == "b.yaml: o.py is also the output of a.yaml"


def test_broken_toml_is_told_with_its_line(root: Path) -> None:
    assert fault(root, "[tool.normgen]\njobs = ]\n").startswith(
        "pyproject.toml:2:8: not valid TOML: "
    )
    assert fault(root, "tool = 1\n[tool.normgen]\n").startswith("pyproject.toml:2:")


def test_tool_normgen_must_be_a_table(root: Path) -> None:
    assert fault(root, "[tool]\nnormgen = 3\n").endswith(
        "tool.normgen: expected a table"
    )


def test_toml_that_is_no_utf8_is_told(root: Path) -> None:
    (root / "pyproject.toml").write_bytes(b"a = '\xe9'\n")
    with pytest.raises(NormgenError, match=r"^pyproject\.toml: not UTF-8$"):
        project_at(root)


def test_a_path_that_cannot_stand_in_a_comment_is_refused(root: Path) -> None:
    (root / "specs" / "a\nimport os\n.yaml").write_text("")
    with pytest.raises(NormgenError) as caught:
        project_at(root)
    assert "\n" not in str(caught.value)
    assert "unprintable" in str(caught.value)


def test_a_path_that_shares_no_folder_is_absolute() -> None:
    assert relative(Path("/tmp/x.yaml"), Path("/work/a")) == "/tmp/x.yaml"
    assert relative(Path("/work/x.yaml"), Path("/work/a")) == "../x.yaml"
    assert relative(Path("/tmp/x.yaml"), Path("/")) == "tmp/x.yaml"


def test_commands_are_quoted_and_relative_to_where_they_are_typed(root: Path) -> None:
    (job,) = jobs_of([root / "specs" / "my norm.yaml"])
    assert job.command(root) == "normgen render 'specs/my norm.yaml'"
    assert (
        job.command(root / "specs", force=True)
        == "normgen render 'my norm.yaml' --force"
    )
