"""``normgen diff``: what render would change, as a unified diff."""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from normgen import header, output
from normgen.build import Module, build_all, examine
from normgen.config import jobs_of
from normgen.errors import NormgenError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "specs",
        nargs="*",
        type=Path,
        metavar="SPEC",
        help="a spec file; without one, every spec of the project",
    )


def run(args: argparse.Namespace) -> int:
    modules, problems = build_all(jobs_of(args.specs))
    if problems:
        raise NormgenError(*problems)
    diffs = [difference(module) for module in modules if examine(module)]
    sys.stdout.write("".join(diffs))
    return int(bool(diffs))


def difference(module: Module) -> str:
    """The diff from the file on disk to ``module``, as ``git apply`` reads it."""
    name = module.job.output_name
    old = output.read(module.job.output, name)
    lines = unified_diff(
        [] if old is None else header.unix(old).splitlines(keepends=True),
        module.text.splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{name}",
        f"b/{name}",
    )
    unended = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + unended for line in lines)
