"""Jobs to modules, in memory, and how each stands against the file on disk.

``render``, ``check`` and ``diff`` all ask :func:`examine`: they cannot disagree.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from normgen import __version__, header, output
from normgen.config import (
    Job,
    Project,
    absolute,
    files_in,
    job_fault,
    project_at,
    project_of,
    relative,
    unusable_stem,
)
from normgen.errors import NormgenError, Problem

if TYPE_CHECKING:
    from normgen.spec import SpecFile

Kind = Literal["missing", "stale", "edited", "foreign", "orphan"]
FOREIGN = (
    "the file there was not made by normgen; move it away first, or overwrite it with "
    "--force"
)
GUARDED: tuple[Kind, ...] = ("edited", "foreign")  # never overwritten unasked


@dataclass(frozen=True)
class Module:
    """A rendered module, header and all."""

    job: Job
    text: str


@dataclass(frozen=True)
class Finding:
    """A file that is not as its spec says, and the command that mends it, if any."""

    kind: Kind
    path: str
    message: str
    command: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.summary}"

    @property
    def summary(self) -> str:
        run = "" if self.command is None else f"; run: {self.command}"
        return f"{self.kind}: {self.message}{run}"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.path,
            "message": self.message,
            "command": self.command,
        }


def build(job: Job) -> Module:
    """Load and render one spec.  Raises NormgenError with the problems of the spec."""
    from normgen.render import render_body

    spec = load_spec(job)
    if os.path.realpath(job.output) == os.path.realpath(job.spec):
        raise NormgenError(Problem(job.typed_spec, "the output is the spec itself"))
    body = render_body(spec)
    text = header.stamp(
        body.text,
        version=__version__,
        spec_name=job.spec_name,
        command=job.recorded_command,
        spec_hash=header.spec_digest(spec),
        template_hash=header.template_digest(body.templates),
    )
    return Module(job, text)


def load_spec(job: Job) -> SpecFile:
    """The spec of a job; one that is missing is told at the entry that names it."""
    from normgen.loader import load

    if job.entry is not None and not output.exists(job.spec, job.typed_spec):
        raise job_fault(job, "no such file; correct the path, or remove the entry")
    return load(job.spec, job.typed_spec)


def build_all(jobs: Iterable[Job]) -> tuple[list[Module], list[Problem]]:
    """The modules that could be rendered, and the problems of the other specs."""
    modules: list[Module] = []
    problems: list[Problem] = []
    for job in jobs:
        try:
            modules.append(build(job))
        except NormgenError as error:
            problems += error.problems
    return modules, problems


def examine(module: Module) -> Finding | None:
    """How the file on disk differs from ``module``; None where it does not.

    A difference of line ends or of normgen's version alone is none.  Raises
    NormgenError where the file cannot be read, or not be imported by its name.
    """
    job, name = module.job, module.job.typed_output
    if reason := unusable_stem(job.output):
        raise NormgenError(Problem(job.typed_spec, _unimportable(name, reason)))
    there = output.read(job.output, name)
    command = job.command(Path.cwd())
    if there is None:
        return Finding("missing", name, "there is no such file yet", command)
    if header.same(there, module.text):
        return None
    old, new = header.parse(there), header.parse(module.text)
    if old is None or new is None:
        return Finding("foreign", name, FOREIGN, command)
    if not header.verify(old):
        forced = job.command(Path.cwd(), force=True)
        message = "it was changed by hand, and rendering would undo that"
        return Finding("edited", name, message, forced)
    return Finding("stale", name, _reason(old, new), command)


def examine_all(
    modules: Iterable[Module],
) -> tuple[dict[Module, Finding | None], list[Problem]]:
    """What :func:`examine` says of each module, and the problems of the others."""
    findings: dict[Module, Finding | None] = {}
    problems: list[Problem] = []
    for module in modules:
        try:
            findings[module] = examine(module)
        except NormgenError as error:
            problems += error.problems
    return findings, problems


def _unimportable(name: str, reason: str) -> str:
    remedy = "name another with -o or in [tool.normgen.jobs]"
    return f"{name} could not be imported: {reason}; {remedy}"


def _reason(old: header.Header, new: header.Header) -> str:
    changed = []
    if old.spec_hash != new.spec_hash:
        changed.append("the spec")
    if old.template_hash != new.template_hash:
        changed.append("the templates")
    if changed:
        return f"{' and '.join(changed)} changed"
    if old.body_hash != new.body_hash:
        return f"normgen's output changed (from {old.version} to {new.version})"
    if old.command != new.command:
        return f'it was made for another place, by "{old.command}"'
    return "its header differs"


def verify_alone(path: Path, name: str) -> Finding | None:
    """Check a module against its own header only: the spec may be anywhere.

    Raises NormgenError where there is no file, or one that normgen did not make.
    """
    text = output.read(path, name)
    if text is None:
        raise NormgenError(Problem(name, "no such file"))
    old = header.parse(text)
    if old is None:
        raise NormgenError(Problem(name, "not made by normgen: it has no header"))
    if header.verify(old):
        return None
    message = (
        f"it was changed by hand since normgen made it from {old.spec}; "
        "copy it afresh, or render it again from its spec"
    )
    return Finding("edited", name, message, _remedy(path, old))


def _remedy(path: Path, old: header.Header) -> str | None:
    """The command that makes a vendored module anew, where its very spec is at hand: in
    the module's own project, or in that of the working folder."""
    if unusable_stem(path):
        return None
    for project in (project_of(path), project_at(Path.cwd())):
        try:
            job = made_from(project, path, old)
            if job and header.spec_digest(load_spec(job)) == old.spec_hash:
                return job.command(Path.cwd(), force=True)
        except NormgenError:
            continue  # another spec of that name
    return None


def made_from(project: Project, path: Path, old: header.Header) -> Job | None:
    """The job of a module by its header, if the project has that spec."""
    spec = project.root / old.spec
    if not output.exists(spec, relative(spec, Path.cwd())):
        return None
    return replace(project.job(spec), output=absolute(path))


def strays(project: Project) -> tuple[list[Job], list[Finding]]:
    """The modules in the project's output folders that no job makes: those whose spec
    is there, and the orphans.  Raises NormgenError where a folder cannot be read."""
    expected = {os.path.realpath(job.output) for job in project.jobs}
    jobs: list[Job] = []
    orphans: list[Finding] = []
    for folder in project.output_folders:
        for path in files_in(folder):
            if path.suffix != ".py" or os.path.realpath(path) in expected:
                continue
            name = relative(path, Path.cwd())
            old = header.parse(output.read(path, name) or "")
            job = made_from(project, path, old) if old else None
            if job is not None:
                jobs.append(job)
            elif old is not None:
                orphans.append(_orphan(path, name, old))
    return jobs, orphans


def _orphan(path: Path, name: str, old: header.Header) -> Finding:
    message = f"no job makes it, and its spec is gone ({old.spec})"
    return Finding("orphan", name, message, shlex.join(["rm", name]))


def files(modules: Sequence[Module]) -> list[output.File]:
    """The modules as files to write."""
    return [output.File(m.job.output, m.job.typed_output, m.text) for m in modules]
