"""The classes of one kind compute alike, bit for bit: a class that a row calls by the
wrong kind shows.  What a kind computes is tested on the class that it was read from.
"""

from __future__ import annotations

import inspect
from pydoc import locate
from typing import Any

import pytest
import torch

from normgen.families.table import families, kinds

SIZE, GROUP = 96, 32
EPS = 1e-3  # large enough that its place shows
ALIKE = (
    *("llama", "torch_rms", "weightless_rms", "gemma", "t5"),
    *("mamba_gated", "gated_delta", "sigmoid_gated"),
)
PAIRS = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
)


def classes_of(kind: str) -> set[str]:
    return {
        source
        for family in families().values()
        for row in family.norms
        if row.kind == kind and (source := family.source(row)) is not None
    }


CASES = [(kind, source) for kind in ALIKE for source in sorted(classes_of(kind))]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(("kind", "source"), CASES)
def test_a_class_computes_as_its_kind(kind: str, source: str) -> None:
    for x_dtype, weight_dtype in PAIRS:
        expected = output(kinds()[kind].source, kind, x_dtype, weight_dtype)
        found = output(source, kind, x_dtype, weight_dtype)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_the_kinds_differ() -> None:
    """The rows that the classes are compared on tell the kinds apart."""
    plain = [kind for kind in ALIKE if kind != "weightless_rms"]
    made = [
        [output(kinds()[kind].source, kind, *pair) for pair in PAIRS] for kind in plain
    ]
    for i, one in enumerate(made):
        for other in made[:i]:
            assert any(
                a.dtype != b.dtype or not torch.equal(a, b)
                for a, b in zip(one, other, strict=True)
            )


def output(
    source: str, kind: str, x_dtype: torch.dtype, weight_dtype: torch.dtype
) -> torch.Tensor:
    """What a class makes of rows that are the same for every class."""
    generator = torch.Generator().manual_seed(7)
    x, gate = torch.randn(2, 2, 5, SIZE, generator=generator)
    x *= torch.logspace(-2, 2, 5)[:, None]
    weight = torch.rand(SIZE, generator=generator) + 0.5
    module = make(source, weightless=kind == "weightless_rms")
    if getattr(module, "weight", None) is not None:
        module.weight.data = weight.to(weight_dtype)
    operands = [x.to(x_dtype)]
    if "gate" in inspect.signature(module.forward).parameters:
        operands.append(gate.to(x_dtype))
    with torch.no_grad():
        return module(*operands)


def make(source: str, *, weightless: bool) -> torch.nn.Module:
    """An instance, by the parameters that its constructor has."""
    constructor: Any = locate(source)
    parameters = inspect.signature(constructor).parameters
    known = {
        "eps": EPS,
        "group_size": GROUP,
        "with_scale": not weightless,
        "elementwise_affine": not weightless,
    }
    arguments = {name: value for name, value in known.items() if name in parameters}
    size = [] if next(iter(parameters)) == "eps" else [SIZE]
    return constructor(*size, **arguments)
