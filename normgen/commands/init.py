"""``normgen init``: a spec for a model, from its type or its config.json."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgen.config import SPEC_FOLDER, SPEC_SUFFIXES, absolute, project_at, relative
from normgen.errors import NormgenError, Problem
from normgen.output import File, read, write_all
from normgen.report import report

if TYPE_CHECKING:
    from normgen.families.resolve import Model

#: The questions that no config answers, as attributes of the parsed arguments.
ANSWERS = (
    *("variant", "hidden_size", "eps"),
    *("rounding_normalized", "weight_offset", "out_dtype"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``normgen init NAME`` or ``normgen init --from config.json``."""
    parser.add_argument(
        "model_type",
        nargs="?",
        metavar="NAME",
        help="a model_type of transformers, such as llama; sizes are its defaults",
    )
    parser.add_argument(
        "--from",
        dest="config",
        type=Path,
        metavar="FILE",
        help="the config.json of a checkpoint, with its own sizes and eps",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the known model types instead"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o", "--output", metavar="FILE", help="default: specs/NAME.yaml"
    )
    parser.add_argument(
        "--replaces",
        action="store_true",
        help="name the classes that patch(model) shall replace",
    )
    where.add_argument("--stdout", action="store_true", help="print the spec instead")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a file that differs"
    )
    _add_answers(parser)


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "unknown model types",
        "Either --like, or what its norm computes; docs/spec.md has the fields.",
    )
    group.add_argument(
        "--like", metavar="TYPE", help="the known type with the same norms"
    )
    group.add_argument("--variant", choices=("rms_norm", "layer_norm"))
    group.add_argument(
        "--hidden-size", metavar="N or KEY", help="a number, or a key of the config"
    )
    group.add_argument(
        "--eps", metavar="N or KEY", help="a number, or a key of the config"
    )
    group.add_argument(
        "--rounding-normalized",
        choices=("none", "io", "weight"),
        help="what x_hat is rounded to before the weight: none as torch, io as Llama, "
        "weight as T5",
    )
    group.add_argument(
        "--weight-offset",
        type=float,
        metavar="N",
        help="1 where the scale is 1 + weight, else 0",
    )
    group.add_argument(
        "--out-dtype",
        choices=("same", "promote"),
        help="dtype of y: that of x, or what weight * x_hat returns",
    )
    group.add_argument("--bias", action="store_true", help="the norm has a bias")


def run(args: argparse.Namespace) -> int:
    """Writes the spec; 0."""
    from normgen.families.table import families

    if args.list:
        if args.format == "json":
            report("json", model_types=list(families()))
        else:
            print("\n".join(families()))
        return 0
    if args.stdout and args.format == "json":
        raise NormgenError(Problem("--stdout", "prints a spec, and no JSON"))
    name, text = _spec(args)
    if args.stdout:
        sys.stdout.write(text)
        return 0
    path = _path(args.output, name)
    display = relative(path, Path.cwd())
    there = read(path, display)
    if there is not None and there != text and not args.force:
        message = "not written: it exists; --force overwrites it, -o names another"
        raise NormgenError(Problem(display, message))
    if there != text:
        write_all([File(path, display, text)])
    done = "unchanged" if there == text else "wrote"
    if args.format == "json":
        report("json", files={display: done})
    else:
        print(done, display)
    return 0


def _spec(args: argparse.Namespace) -> tuple[str, str]:
    """The name and the text of the spec, which is known to load."""
    from normgen.families.write import spec_text
    from normgen.loader import parse

    if (args.model_type is None) == (args.config is None):
        message = "expected a model type, or --from and a config.json"
        if args.config is not None:
            message += ", not both"
        raise NormgenError(Problem("init", message))
    where = args.model_type or relative(absolute(args.config), Path.cwd())
    config = {} if args.config is None else _read_config(args.config, where)
    model = _model(args, config, where)
    if args.config is not None and model.assumed:
        told = ", ".join(f"{key} {value}" for key, value in model.assumed.items())
        print(f"{where}: not in it, so as transformers does: {told}", file=sys.stderr)
    text = spec_text(model, _origin(args), args.replaces)
    parse(text, where)
    return model.model_type, text


def _model(args: argparse.Namespace, config: dict[str, Any], where: str) -> Model:
    from normgen.families.answers import answered
    from normgen.families.resolve import resolve
    from normgen.families.table import families

    model_type = args.model_type or config.get("model_type") or args.like
    if not isinstance(model_type, str) or not model_type.isprintable():
        message = f"model_type: expected a name, got {model_type!r}; --like names one"
        raise NormgenError(Problem(where, message))
    given = {n: getattr(args, n) for n in ANSWERS if getattr(args, n) is not None}
    known = model_type in families()
    if (args.like or given or args.bias) and known:
        message = f"{model_type} is a known type: its norms need no answers"
        raise NormgenError(Problem(where, message))
    if args.like and (given or args.bias):
        raise NormgenError(Problem("--like", "answers what the other flags ask"))
    if args.like and args.config is None:
        message = "needs --from: the sizes of another type are not taken over"
        raise NormgenError(Problem("--like", message))
    if given or args.bias:
        if missing := [_flag(name) for name in ANSWERS if name not in given]:
            message = f"still open: {', '.join(missing)}"
            raise NormgenError(Problem(where, message))
        return answered(model_type, config, where, given, args.bias)
    return resolve(model_type, config, where, args.like)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_config(path: Path, where: str) -> dict[str, Any]:
    from normgen.loader import read_text

    text = read_text(path, where)
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}"
        problem = Problem(where, message, error.lineno, error.colno)
        raise NormgenError(problem) from None
    except (RecursionError, ValueError):  # too deep, or a number of too many digits
        problem = Problem(where, "not a config: it is no usable JSON")
        raise NormgenError(problem) from None
    if not isinstance(config, dict):
        raise NormgenError(Problem(where, "not a config: expected a JSON object"))
    return config


def _origin(args: argparse.Namespace) -> str:
    if args.config is None and args.variant is not None:
        return "All of it as answered on the command line."
    if args.config is None:
        return (
            "Sizes and eps are the defaults of its config class; a checkpoint may "
            "have others, which normgen init --from config.json reads."
        )
    if args.like is not None:
        return f"Sizes and eps from {args.config.name}; the norms as in {args.like}."
    if args.variant is not None:
        return f"As answered on the command line, beside {args.config.name}."
    return f"Sizes and eps from {args.config.name}."


def _path(output: str | None, name: str) -> Path:
    """Where the spec goes: what -o says, or specs/ of the project."""
    if output is None:
        stem = re.sub(r"\W", "_", name)
        return project_at(Path.cwd()).root / SPEC_FOLDER / f"{stem}.yaml"
    path = absolute(Path(output))
    if path.suffix not in SPEC_SUFFIXES:
        message = f"a spec ends in {' or '.join(SPEC_SUFFIXES)}"
        raise NormgenError(Problem(f"-o {output}", message))
    return path
