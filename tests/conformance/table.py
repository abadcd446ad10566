"""docs/models.md: a row for every case.

``python -m conformance.table``, run in tests/, writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.intervals import U

from conformance.bounds import slack
from conformance.case import Case
from conformance.cases import CASES
from conformance.groups import GROUPS
from conformance.harness import norm_of

PATH = Path(__file__).parents[2] / "docs" / "models.md"

HEAD = """\
# Norms of real models

Generated from the cases in [`tests/conformance`](../tests/conformance) by
`python -m conformance.table`, run in `tests/`; do not edit.

Each row is a test. The class of the library gets drawn weights, the generated module
loads them, and the emitted reference must return what the class returns, dtype
included: for float32, for bfloat16, for float16, and for bfloat16 with float32 weights,
as far as the class takes them. There are {classes} classes and functions of
transformers 5.24.0, diffusers 0.42.1, timm 1.0.31 and torch 2.13; most other models
have one of them by another name.

* **exact**: bit for bit.
* **bound**: the class calls a kernel of torch that adds the terms of a row in an order
  of its own. A sum over n terms in float32 is then off by at most d = (log2(n) + 12) u
  of the sum of their magnitudes, with u = 2^-24, and a root by 2 u. Class and reference
  must both lie between the extremes that the reference has over all such sums, with
  every rounding that it makes. In a half precision the extremes mostly are one value,
  and else one ulp apart.

A spec is a file in [`specs/`](../specs) and the name of an entry, or the fields besides
`name` and `hidden_size`.

| model | class | group | spec | result |
| --- | --- | --- | --- | --- |
"""


def text() -> str:
    classes = len({case.source for case in CASES})
    return HEAD.format(classes=classes) + "\n".join([*_rows(), "", *_legend(), ""])


def _rows() -> Iterator[str]:
    order = list(GROUPS)
    for case in sorted(CASES, key=lambda case: order.index(case.group)):
        library, *_, name = case.source.split(".")
        cells = (case.model, f"{library} `{name}`", case.group, _spec(case))
        yield f"| {' | '.join((*cells, _result(case)))} |"


def _spec(case: Case) -> str:
    if isinstance(case.spec, str):
        stem, entry = case.spec.split(":")
        return f"[{stem}](../specs/{stem}.yaml) `{entry}`"
    return f"`{_flow(case.spec)[1:-1]}`"


def _flow(value: Any) -> str:
    """A value as YAML writes it on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_flow(v)}' for k, v in value.items())}}}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("e-0", "e-")


def _result(case: Case) -> str:
    if case.fused is None:
        return "exact"
    terms = norm_of(case).group_size or case.size
    return f"bound: {case.fused}, d = {slack(terms) / U:.1f} u"


def _legend() -> Iterator[str]:
    yield "| group | what it is |"
    yield "| --- | --- |"
    for group, meaning in GROUPS.items():
        yield f"| {group} | {meaning} |"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
