"""Every value of every field of the spec, forward and backward, in every dtype."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import check_spec
from support.fields import IO, LENGTH, VALUES, accepts, literals, single_values
from support.tables import rows_beyond

from normgen.spec import Affine, Norm, Rounding

CASES = dict(single_values())
FLAT = {
    Norm: {},
    Affine: {"dtype": "parameters"},
    Rounding: {"affine": "affine_rounding"},
}


@pytest.mark.parametrize("io", IO, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_field_value_gives_what_the_contract_says(case, io, device):
    norm = CASES[case]
    if not accepts(norm, io):
        io = getattr(torch, norm.dtype[0])
    shape = (rows_beyond(build(norm), norm, LENGTH), LENGTH)
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


@pytest.mark.parametrize("model", FLAT, ids=lambda model: model.__name__)
def test_no_value_of_the_schema_is_left_out(model):
    missing = {
        (field, value)
        for field, value in literals(model)
        if value not in VALUES.get(FLAT[model].get(field, field), (value,))
        and not isinstance(value, bool)
    }
    covered = {field for field, _ in literals(model)}
    unknown = {f for f in covered if FLAT[model].get(f, f) not in VALUES}
    assert not missing - {("dtype", d) for d in ("float32", "bfloat16", "float16")}
    assert not unknown, "a field of the schema has no case"
