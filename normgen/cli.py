"""The command line: arguments to a command, errors to lines and an exit status.

Only the command that was named is imported, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

from normgen import __version__
from normgen.commands import COMMANDS
from normgen.errors import NormgenError
from normgen.report import FORMATS, report

ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for a finding, 2 for an error."""
    _use_utf8()
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _close_stdout()
        print(f"normgen: {error}", file=sys.stderr)
        return ERROR


def _run(argv: Sequence[str]) -> int:
    args = _parser(argv).parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except NormgenError as error:
        report(args.format, error.problems)
    except (OSError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        print(f"normgen: {error}; pip install normgen brings it", file=sys.stderr)
    except Exception:
        traceback.print_exc()
        print("normgen: this is a bug in normgen; please report it", file=sys.stderr)
    return ERROR


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="normgen",
        description="Normalization kernels as readable, standalone Triton modules, "
        "from a YAML spec.",
        epilog="Exit status: 0, 1 for a finding, 2 for an error.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"normgen {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        if name == chosen:
            module = import_module(f"normgen.commands.{name}")
            module.add_arguments(command)
            command.add_argument(
                "--format",
                choices=FORMATS,
                default="text",
                help="how errors and findings are printed; default: text",
            )
            command.set_defaults(run=module.run)
    return parser


def _use_utf8() -> None:
    """The same bytes on standard output under every locale; paths come out as given."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")


def _close_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of failing again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
