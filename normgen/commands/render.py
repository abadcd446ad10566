"""``normgen render``: specs to modules on disk."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normgen.build import GUARDED, build_all, examine_all, files
from normgen.config import Job, absolute, check_outputs, jobs_of
from normgen.errors import NormgenError, Problem
from normgen.output import write_all
from normgen.report import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "specs",
        nargs="*",
        type=Path,
        metavar="SPEC",
        help="a spec file; without one, every spec of the project",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        metavar="FILE or DIR/",
        help="where to write; default: what the project says, or generated/",
    )
    where.add_argument(
        "--stdout", action="store_true", help="print the module of one spec instead"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite files that were edited by hand or that normgen did not make",
    )


def run(args: argparse.Namespace) -> int:
    if args.stdout and args.format == "json":
        raise NormgenError(Problem("--stdout", "prints a module, and no JSON"))
    jobs = jobs_of(args.specs)
    if args.output is not None:
        jobs = redirected(jobs, args.output)
    if args.stdout and len(jobs) != 1:
        raise NormgenError(Problem("--stdout", f"takes one spec, got {len(jobs)}"))
    modules, problems = build_all(jobs)
    if problems:
        raise NormgenError(*problems)
    if args.stdout:
        sys.stdout.write(modules[0].text)
        return 0
    findings, problems = examine_all(modules)
    if problems:
        raise NormgenError(*problems)
    guarded = [f for f in findings.values() if f and f.kind in GUARDED]
    if guarded and not args.force:
        raise NormgenError(
            *(Problem(f.path, f"not written: {f.summary}") for f in guarded)
        )
    changed = [module for module, finding in findings.items() if finding]
    write_all(files(changed))
    done = {
        module.job.typed_output: "wrote" if module in changed else "unchanged"
        for module in modules
    }
    if args.format == "json":
        report("json", files=done)
    else:
        for name, what in done.items():
            print(what, name)
    return 0


def redirected(jobs: Sequence[Job], output: str) -> list[Job]:
    """The jobs with the output that the command line names, a file or a folder."""
    if not output:
        raise NormgenError(Problem("-o", "names neither a file nor a folder"))
    separators = (os.sep, os.altsep or os.sep)
    path = absolute(Path(output))
    if output.endswith(separators) or os.path.isdir(path):
        moved = [replace(job, output=path / f"{job.spec.stem}.py") for job in jobs]
    elif len(jobs) != 1:
        message = f"names one file for {len(jobs)} specs; write {output}/ for a folder"
        raise NormgenError(Problem(f"-o {output}", message))
    elif path.suffix != ".py":
        message = f"ends in neither .py nor /; write {output}/ for a folder"
        raise NormgenError(Problem(f"-o {output}", message))
    else:
        moved = [replace(jobs[0], output=path)]
    check_outputs(moved)
    return moved
