"""All pairs of field values, as a covering array of some tens of specs."""

from __future__ import annotations

import itertools

import pytest
from support.build import build
from support.checks import check_spec
from support.combinations import AXES, COMBINATIONS, UNREACHABLE
from support.fields import LENGTH, fields_of, norm_of, problems
from support.pairs import all_pairs, covering_array, pairs_of
from support.tables import rows_beyond


@pytest.mark.parametrize("index", range(len(COMBINATIONS)))
def test_a_combination_gives_what_the_contract_says(index, device):
    combination = COMBINATIONS[index]
    norm = norm_of(fields_of(combination))
    check_spec(
        norm,
        (rows_beyond(build(norm), norm, LENGTH), LENGTH),
        combination["io"],
        device,
        parameters=combination["free"],
        seed=index,
    )


def test_every_valid_pair_is_covered():
    covered = set().union(*map(pairs_of, COMBINATIONS))
    dropped = all_pairs(AXES) - covered
    assert dropped == UNREACHABLE
    assert len(COMBINATIONS) <= 80
    for pair in sorted(dropped, key=repr):
        assert contradicts(dict(pair)), f"{dict(pair)} is valid, but was not covered"


def contradicts(pair):
    """Whether no choice of the fields that rules tie together makes the pair valid."""
    tied = (
        *("weight", "bias", "weight_offset", "residual", "residual_sum", "out_dtype"),
        *("backward", "save_stats", "io"),
    )
    free = [field for field in tied if field not in pair]
    harmless = {axis: values[0] for axis, values in AXES.items()}
    return all(
        problems(harmless | dict(zip(free, values, strict=True)) | pair)
        for values in itertools.product(*(AXES[field] for field in free))
    )


def test_the_array_is_the_same_each_time():
    """Workers of xdist must collect the same tests."""
    assert covering_array(AXES, problems)[0] == COMBINATIONS
