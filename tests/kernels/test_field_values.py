"""Every value of every field of the spec, forward and backward, in every dtype."""

from __future__ import annotations

import pytest
import torch
from support.build import BLOCKS, SHORT, build, make
from support.checks import check_spec
from support.fields import (
    IO,
    LANGUAGE,
    LENGTH,
    accepts,
    literals,
    single_values,
)
from support.places import shape_for
from support.tables import rows_beyond

from normgen.spec import Norm

CASES = dict(single_values())
#: The models of the spec by the name of their block.
MODELS = {"": Norm, **BLOCKS}
LONG = {dotted: short for short, dotted in SHORT.items()}


@pytest.mark.parametrize("io", IO, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_field_value_gives_what_the_contract_says(case, io, device):
    norm = CASES[case]
    if not accepts(norm, io):
        io = getattr(torch, norm.dtype[0])
    shape = shape_for(norm, rows_beyond(build(norm), norm, LENGTH), LENGTH)
    check_spec(norm, shape, io, device)


@pytest.mark.parametrize("parameters", IO, ids=str)
@pytest.mark.parametrize("io", IO, ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        {"normalized": "io"},
        {"normalized": "weight", "out_dtype": "promote"},
        {"variant": "layer_norm", "bias": True},
        {"weight_offset": 1.0, "offset_precision": "param", "out_dtype": "promote"},
    ],
    ids=str,
)
def test_x_and_parameters_of_any_two_dtypes(fields, io, parameters, device):
    norm = make(**fields)
    check_spec(norm, (71, LENGTH), io, device, parameters=parameters)


@pytest.mark.parametrize("block", MODELS)
def test_no_value_of_the_schema_is_left_out(block):
    for field, value in literals(MODELS[block]):
        if field in MODELS or (field, value) == ("replaces", None):
            continue
        dotted = f"{block}.{field}" if block else field
        values = LANGUAGE.get(LONG.get(dotted, dotted))
        assert values is not None, f"{dotted} has no case"
        held = {value for one in values for value in _each(one)}
        assert value in held or isinstance(value, bool), f"{dotted}: {value}"


def _each(value):
    return value if isinstance(value, tuple) else (value,)
