"""``normgen explain``: the resolved plan of a spec, for people."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normgen.config import jobs_of
from normgen.report import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``normgen explain [SPEC ...]``."""
    parser.add_argument(
        "specs",
        nargs="*",
        type=Path,
        metavar="SPEC",
        help="a spec file; without one, every spec of the project",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the plan of every norm; 0."""
    from normgen.build import load_spec
    from normgen.explain import explain
    from normgen.plan import plan

    explained = {
        job.typed_spec: [explain(plan(norm)) for norm in load_spec(job).kernels]
        for job in jobs_of(args.specs)
    }
    if args.format == "json":
        report("json", specs=explained)
        return 0
    for name, norms in explained.items():
        print(name)
        for norm in norms:
            print("\n".join(("", *_lines(norm))))
    return 0


def _lines(norm: dict[str, Any]) -> Iterator[str]:
    yield f"{norm['call']} -> {', '.join(norm['returns'])}"
    yield f"  {norm['summary']}"
    yield from (f"      {line}" for line in norm["formula"])
    yield from ("", "  Numerics")
    yield from (f"      {line}" for line in norm["numerics"])
    yield from ("", "  Bytes moved, parameters aside")
    yield from map(_traffic, norm["traffic"])
    yield from ("", "  Launch")
    shown = None
    for launch in norm["launches"]:
        way = (launch["direction"], launch["strategy"])
        if way != shown:
            shown = way
            yield f"      {', '.join(way)}: {launch['why']}"
        yield _launch(launch)
    if norm["advice"]:
        yield from ("", "  Advice")
        yield from (f"      {line}" for line in norm["advice"])


def _traffic(moved: dict[str, Any]) -> str:
    row = moved["bytes_per_row"]
    of_row = "" if row is None else f", {row} a row"
    return (
        f"      {moved['direction']:8}  {moved['x']:8}  "
        f"{moved['bytes_per_value']} a value{of_row}"
    )


def _launch(launch: dict[str, Any]) -> str:
    options = ", ".join(f"{name} {value}" for name, value in launch["options"].items())
    length = f"{launch['row_length']}{'+' if launch['or_longer'] else ''}"
    return f"        {length:>6}  {options}"
