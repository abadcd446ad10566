"""Which specs a project has, and where the module of each goes.

A project is the nearest folder, upwards, with a pyproject.toml or a .git.  Its jobs
stand in ``[tool.normgen.jobs]``, spec = output; without that table, each specs/X.yaml
makes generated/X.py.
"""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from normgen.errors import NormgenError, Problem

CONFIG = "pyproject.toml"
SPEC_FOLDER = "specs"
SPEC_SUFFIXES = (".yaml", ".yml")
OUTPUT_FOLDER = "generated"


@dataclass(frozen=True)
class Job:
    """One module to make.  Paths are absolute; names are relative to ``root``.

    ``planned`` is the output that the project names; ``output`` differs from it where
    the command line said so.
    ``entry`` is the spec as the project's pyproject.toml spells it, if it does.
    """

    root: Path
    spec: Path
    output: Path
    planned: Path
    entry: str | None = None

    @property
    def spec_name(self) -> str:
        return name_below(self.root, self.spec)

    @property
    def output_name(self) -> str:
        return name_below(self.root, self.output)

    @property
    def typed_spec(self) -> str:
        """The spec as messages call it: as it is typed in the working folder."""
        return relative(self.spec, Path.cwd())

    @property
    def typed_output(self) -> str:
        return relative(self.output, Path.cwd())

    @property
    def is_inside(self) -> bool:
        """Whether the output lies in the project."""
        return self.output.is_relative_to(self.root)

    def command(self, base: Path, *, force: bool = False) -> str:
        """What to type in the folder ``base`` to make the output."""
        words = ["normgen", "render", relative(self.spec, base)]
        if self.output != self.planned:
            words += ["-o", relative(self.output, base)]
        return shlex.join([*words, "--force"] if force else words)

    @property
    def recorded_command(self) -> str:
        """The command for the header: the same on every machine."""
        if self.is_inside:
            return self.command(self.root)
        return shlex.join(["normgen", "render", self.spec_name])


@dataclass(frozen=True)
class Project:
    """A root folder and the jobs that it names."""

    root: Path
    jobs: tuple[Job, ...]

    @property
    def output_folders(self) -> tuple[Path, ...]:
        """Every folder that normgen fills, each once."""
        folders = [self.root / OUTPUT_FOLDER, *(job.output.parent for job in self.jobs)]
        return tuple(dict.fromkeys(folders))

    def job(self, spec: Path) -> Job:
        """The job of one spec: the one the project names, or the usual place.

        Of two names of one file, the one that was given counts.
        """
        spec, real = absolute(spec), os.path.realpath(spec)
        named = [job for job in self.jobs if job.spec == spec]
        linked = [job for job in self.jobs if os.path.realpath(job.spec) == real]
        output = self.root / OUTPUT_FOLDER / f"{spec.stem}.py"
        return next(iter(named + linked), None) or _job(self.root, spec, output)


def project_at(folder: Path) -> Project:
    """The project that ``folder`` belongs to; else a project of its own.

    Raises NormgenError for a faulty configuration.
    """
    root = _marked_root(absolute(folder)) or absolute(folder)
    return Project(root, tuple(_jobs(root)))


def project_of(path: Path) -> Project:
    """The project of a spec or of a module; without a marked root, the working folder
    where that holds the file, else the file's own folder."""
    path, here = absolute(path), Path.cwd()
    if root := _marked_root(path.parent):
        return project_at(root)
    return project_at(here if path.is_relative_to(here) else path.parent)


def jobs_of(specs: Sequence[Path]) -> list[Job]:
    """The job of each spec, each once; with no spec, all jobs of this folder's project.

    Raises NormgenError where there is no job, or two have one output.
    """
    if not specs:
        project = project_at(Path.cwd())
        if not project.jobs:
            raise NormgenError(no_jobs(project))
        return list(project.jobs)
    jobs = list(dict.fromkeys(project_of(spec).job(spec) for spec in specs))
    check_outputs(jobs)
    return jobs


def no_jobs(project: Project) -> Problem:
    folder = relative(project.root, Path.cwd())
    return Problem(
        folder, f"no specs: expected {SPEC_FOLDER}/*.yaml or [tool.normgen.jobs]"
    )


def check_outputs(jobs: Sequence[Job]) -> None:
    """Raise NormgenError where two jobs would write one file, or one over a spec."""
    makers: dict[str, Job] = {}
    specs = {os.path.realpath(job.spec): job for job in jobs}
    for job in jobs:
        if specs.get(os.path.realpath(job.output), job) is not job:
            raise NormgenError(
                Problem(job.typed_spec, f"{job.typed_output}: the output is a spec")
            )
        first = makers.setdefault(os.path.realpath(job.output), job)
        if first is not job:
            raise NormgenError(
                Problem(
                    job.typed_spec,
                    f"{job.typed_output} is also the output of {first.typed_spec}",
                )
            )


def unusable_stem(output: Path) -> str | None:
    """Why no Python program can import the module ``output``; None where one can."""
    stem = Path(_text(output)).stem
    if keyword.iskeyword(stem):
        return f'"{stem}" is a Python keyword'
    return None if stem.isidentifier() else f'"{stem}" is no Python identifier'


def files_in(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing where there is no such folder.

    Raises NormgenError where the folder cannot be read.
    """
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise NormgenError(Problem(relative(folder, Path.cwd()), what)) from None


def absolute(path: Path) -> Path:
    """The absolute path, without ``..``; symbolic links stay."""
    return Path(os.path.abspath(path))


def name_below(root: Path, path: Path) -> str:
    """``path`` with forward slashes: relative to ``root`` if it lies there."""
    return _text(path.relative_to(root) if path.is_relative_to(root) else path)


def relative(path: Path, base: Path) -> str:
    """``path`` as it is typed in the folder ``base``: absolute where the two share no
    folder."""
    try:
        far = len(base.parts) > 1 and os.path.commonpath([path, base]) == path.anchor
        return _text(path if far else Path(os.path.relpath(path, base)))
    except ValueError:  # another drive
        return _text(path)


def _text(path: Path) -> str:
    """A path as text, the same under every locale: names are taken to be UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="surrogateescape")


def _marked_root(folder: Path) -> Path | None:
    for candidate in (folder, *folder.parents):
        # Unlike Path's, these do not raise where a folder may not be searched.
        if os.path.isfile(candidate / CONFIG) or os.path.exists(candidate / ".git"):
            return candidate
    return None


def _job(root: Path, spec: Path, output: Path, entry: str | None = None) -> Job:
    job = Job(root, spec, output, planned=output, entry=entry)
    for name in (job.typed_spec, job.typed_output):
        if not name.isprintable():  # it stands in a comment of the module
            raise NormgenError(
                Problem(ascii(name)[1:-1], "the path holds an unprintable character")
            )
    return job


def _jobs(root: Path) -> Iterator[Job]:
    table = _table(root)
    if "jobs" in table:
        yield from _configured(root, table["jobs"])
        return
    found = [
        path
        for path in files_in(root / SPEC_FOLDER)
        if path.suffix in SPEC_SUFFIXES and not path.name.startswith(".")
    ]
    jobs = [_job(root, p, root / OUTPUT_FOLDER / f"{p.stem}.py") for p in found]
    check_outputs(jobs)
    yield from jobs


def _configured(root: Path, table: Any) -> Iterator[Job]:
    if not isinstance(table, dict):
        raise _fault(root, "jobs: expected a table of spec = output")
    jobs: dict[Path, Job] = {}
    for entry, output in table.items():
        if fault := _entry_fault(root, entry, output):
            raise _fault(root, f'jobs."{entry}": {fault}')
        spec = absolute(root / entry)
        if spec in jobs:
            first = jobs[spec].entry
            raise _fault(root, f'jobs."{entry}": "{first}" is the same spec')
        jobs[spec] = _job(root, spec, absolute(root / output), entry)
    check_outputs(list(jobs.values()))
    yield from jobs.values()


def _entry_fault(root: Path, spec: str, output: Any) -> str | None:
    """What is wrong with one entry of the table of jobs."""
    if not isinstance(output, str):
        return "expected the path of the output as a string"
    if not output.endswith(".py"):
        return "expected an output that ends in .py"
    for name in (spec, output):
        if Path(name).is_absolute() or root not in absolute(root / name).parents:
            return f'expected a path inside the project, got "{name}"'
    if reason := unusable_stem(Path(output)):
        return f"{output} cannot be imported: {reason}"
    return None


def _table(root: Path) -> dict[str, Any]:
    """``[tool.normgen]`` of the root's pyproject.toml, with known keys only."""
    path = root / CONFIG
    if not os.path.isfile(path):
        return {}
    tool = _parse(path).get("tool", {})
    table = tool.get("normgen", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise NormgenError(Problem(_config(root), "tool.normgen: expected a table"))
    for key in table:
        if key != "jobs":
            near = '; did you mean "jobs"?' if get_close_matches(key, ["jobs"]) else ""
            raise _fault(root, f"{key}: unknown key{near}")
    return table


def _parse(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    name = _config(path.parent)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise NormgenError(Problem(name, "not UTF-8")) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NormgenError(Problem(name, f"cannot be read: {reason}")) from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        line, column = map(int, place.groups()) if place else (None, None)
        what = message[: place.start()] if place else message
        raise NormgenError(
            Problem(name, f"not valid TOML: {what}", line, column)
        ) from None


def job_fault(job: Job, message: str) -> NormgenError:
    """An error of a job, at its entry in pyproject.toml."""
    return _fault(job.root, f'jobs."{job.entry}": {message}')


def _config(root: Path) -> str:
    return relative(root / CONFIG, Path.cwd())


def _fault(root: Path, message: str) -> NormgenError:
    return NormgenError(Problem(_config(root), f"tool.normgen.{message}"))
