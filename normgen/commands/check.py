"""``normgen check``: whether the modules on disk are those that render would write."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from normgen import header, output
from normgen.build import (
    Finding,
    build_all,
    examine_all,
    made_from,
    strays,
    verify_alone,
)
from normgen.config import Job, jobs_of, no_jobs, project_at, project_of
from normgen.errors import NormgenError, Problem
from normgen.report import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="SPEC or FILE",
        help="a spec, or a generated module; without one, the whole project",
    )


def run(args: argparse.Namespace) -> int:
    problems: list[Problem] = []
    findings: list[Finding] = []
    jobs: list[Job] = []
    alone = 0
    if args.files:
        for path in args.files:
            try:
                if job := _job_of(path):
                    jobs.append(job)
                    continue
                alone += 1
                findings += filter(None, [verify_alone(path, path.as_posix())])
            except NormgenError as error:
                problems += error.problems
    else:
        project = project_at(Path.cwd())
        more, orphans = strays(project)
        jobs = [*project.jobs, *more]
        findings += orphans
        if not jobs and not findings:
            raise NormgenError(no_jobs(project))
    jobs = list(dict.fromkeys(jobs))
    modules, unbuilt = build_all(jobs)
    examined, unread = examine_all(modules)
    problems += unbuilt + unread
    findings += filter(None, examined.values())
    report(args.format, problems, sorted(findings, key=lambda f: f.path))
    if args.format == "text" and not problems and not findings:
        count = len(jobs) + alone
        print(f"{count} {'file is' if count == 1 else 'files are'} up to date")
    return 2 if problems else int(bool(findings))


def _job_of(path: Path) -> Job | None:
    """The job of a spec, or of a module whose spec is in its project; else None."""
    if path.suffix != ".py":
        return jobs_of([path])[0]
    project = project_of(path)
    real = os.path.realpath(path)
    for job in project.jobs:
        if os.path.realpath(job.output) == real:
            return job
    old = header.parse(output.read(path, path.as_posix()) or "")
    made = made_from(project, path, old) if old else None
    if old is None or made is None:
        return None
    # A module that -o put elsewhere names its own place in its command.
    belongs = made.recorded_command == old.command
    return made if belongs or made.output.parent in project.output_folders else None
