"""Jobs to modules, in memory, and how each stands against the file on disk.

``render``, ``check`` and ``diff`` all ask :func:`examine`: they cannot disagree.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from normgen import __version__, header, output
from normgen.config import Job, Project, name_below, relative
from normgen.errors import NormgenError, Problem

Kind = Literal["missing", "stale", "edited", "foreign", "orphan"]
GUARDED: tuple[Kind, ...] = ("edited", "foreign")  # never overwritten unasked


@dataclass(frozen=True)
class Module:
    """A rendered module, header and all."""

    job: Job
    text: str


@dataclass(frozen=True)
class Finding:
    """A file that is not as its spec says, and the command that mends it."""

    kind: Kind
    path: str
    message: str
    command: str

    def __str__(self) -> str:
        return f"{self.path}: {self.summary}"

    @property
    def summary(self) -> str:
        return f"{self.kind}: {self.message}; run: {self.command}"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.path,
            "message": self.message,
            "command": self.command,
        }


def build(job: Job) -> Module:
    """Load and render one spec.  Raises NormgenError with the problems of the spec."""
    from normgen.loader import load
    from normgen.render import render_body

    spec = load(job.spec, job.spec_name)
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

    A difference of line ends or of normgen's version alone is none.
    """
    job = module.job
    there = output.read(job.output, job.output_name)
    command = job.command(Path.cwd())
    if there is None:
        return Finding("missing", job.output_name, "there is no such file yet", command)
    if header.same(there, module.text):
        return None
    forced = job.command(Path.cwd(), force=True)
    old, new = header.parse(there), header.parse(module.text)
    if old is None or new is None:
        message = "the file there was not made by normgen"
        return Finding("foreign", job.output_name, message, forced)
    if not header.verify(old):
        message = "it was changed by hand, and rendering would undo that"
        return Finding("edited", job.output_name, message, forced)
    return Finding("stale", job.output_name, _reason(old, new), command)


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
    message = f"it was changed by hand since normgen made it from {old.spec}"
    return Finding("edited", name, message, f"{old.command} --force")


def orphans(project: Project) -> list[Finding]:
    """Modules in the project's output folders that no job makes."""
    expected = {job.output for job in project.jobs}
    found = []
    for folder in project.output_folders:
        for path in sorted(folder.glob("*.py")):
            name = name_below(project.root, path)
            text = None if path in expected else output.read(path, name)
            old = header.parse(text) if text else None
            if old is not None:
                message = f"no job makes it (it was made from {old.spec})"
                command = shlex.join(["rm", relative(path, Path.cwd())])
                found.append(Finding("orphan", name, message, command))
    return found


def files(modules: Sequence[Module]) -> list[output.File]:
    """The modules as files to write."""
    return [output.File(m.job.output, m.job.output_name, m.text) for m in modules]
