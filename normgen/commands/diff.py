"""``normgen diff``: what render would change, as a unified diff."""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from normgen import header, output
from normgen.build import Module, build_all, examine_all
from normgen.config import jobs_of
from normgen.errors import NormgenError
from normgen.report import report


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
    findings, unread = examine_all(modules)
    if problems or unread:
        raise NormgenError(*problems, *unread)
    diffs = {
        module.job.typed_output: difference(module)
        for module, finding in findings.items()
        if finding
    }
    if args.format == "json":
        report("json", diffs=[{"path": p, "diff": text} for p, text in diffs.items()])
    else:
        sys.stdout.write("".join(diffs.values()))
    return int(bool(diffs))


def difference(module: Module) -> str:
    """The diff from the file on disk to ``module``, as ``git apply`` reads it.

    Its names are those of the project: a patch is applied at the root.
    """
    name = module.job.output_name
    old = output.read(module.job.output, module.job.typed_output)
    lines = unified_diff(
        [] if old is None else header.unix(old).splitlines(keepends=True),
        module.text.splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{name}",
        f"b/{name}",
    )
    unended = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + unended for line in lines)
