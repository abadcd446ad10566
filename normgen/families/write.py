"""The norms of a model as the text of a spec, with comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from normgen.families.resolve import Entry, Model, Place
from normgen.families.table import TRANSFORMERS, kinds

MODELINE = "# yaml-language-server: $schema=normgen.schema.json"
WIDTH = 92
FUSED = {
    "pre_add": "fused with the residual add before it; the sum is returned too.",
    "post_add": "fused with the residual add after it: y = residual + norm(x).",
}


def spec_text(model: Model, origin: str, replaces: bool = False) -> str:
    """The spec; ``origin`` says in a sentence where sizes and eps are from.

    With ``replaces`` each entry names the classes that it can stand for."""
    lines = [MODELINE, *_comment(f"{model.model_type}. {origin}", "")]
    if model.assumed:
        taken = ", ".join(f"{k} {_scalar(v)}" for k, v in model.assumed.items())
        lines += _comment(f"Defaults of transformers {TRANSFORMERS}: {taken}.", "")
    for name, why in model.left_out.items():
        lines += _comment(f"Not here: {name}, {why}.", "")
    lines += ["version: 1", "kernels:"]
    for i, entry in enumerate(model.entries):
        lines += ([""] if i else []) + list(_entry(entry))
        paths = replaced(entry) if replaces else ()
        lines += ["    replaces:", *(f"      - {p}" for p in paths)] if paths else []
    return "\n".join(lines) + "\n"


def _entry(entry: Entry) -> Iterator[str]:
    if entry.fused is not None:
        fused = FUSED[entry.fields["residual"]]
        yield from _comment(f"{entry.fused}, {fused}", "  ")
    last = None
    for place in entry.places:
        if place.source is not None and place.source != last:
            yield from _comment(place.source, "  ")
        last = place.source
        yield from _comment(_place(place), "  ", indent="  ")
    if entry.fused is None:
        notes = [kinds()[entry.kind].note] if entry.kind in kinds() else []
        notes += dict.fromkeys(p.note for p in entry.places if p.note is not None)
        for note in notes:
            yield from _comment(note, "  ")
    yield f"  - name: {entry.name}"
    for key, value in entry.fields.items():
        yield f"    {key}: {_flow(value)}"


def replaced(entry: Entry) -> tuple[str, ...]:
    """The classes of a norm's modules, each by the path where it is defined."""
    if "residual" in entry.fields:
        return ()
    sources = (p.source for p in entry.places if p.modules and p.source is not None)
    moved = {"torch.nn": "torch.nn.modules.normalization"}
    paths = (source.rpartition(".") for source in sources)
    return tuple(dict.fromkeys(f"{moved.get(m, m)}.{name}" for m, _, name in paths))


def _place(place: Place) -> str:
    names = ", ".join(place.modules) or "a function, in no module"
    eps = ""
    if isinstance(place.eps, str):
        eps = f", eps from {place.eps}"
    elif place.eps is not None:
        eps = ", eps fixed in the code"
    return f"{names}: over {place.size}{eps}"


def _comment(text: str, margin: str, indent: str = "") -> list[str]:
    start = f"{margin}# {indent}"
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=start,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _flow(value: Any) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_flow(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return re.sub(r"(?<=e)([-+]?)0+", r"\1", repr(value)).removesuffix(".0")
    return value if isinstance(value, str) else json.dumps(value)
