"""All pairs of field values, as a covering array of some tens of specs."""

from __future__ import annotations

import functools
import itertools
import zlib

import pytest
import torch
from support.build import build
from support.checks import check_spec
from support.fields import IO, LENGTH, VALUES, fields_of, norm_of, problems
from support.pairs import all_pairs, covering_array, pairs_of
from support.tables import rows_beyond

#: The fields, and two facts of the tensors: the dtype of x and that of the parameters.
AXES = {**VALUES, "io": IO, "free": IO}


@functools.cache
def array():
    return covering_array(AXES, problems)


COMBINATIONS = array()[0]


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
    assert dropped == array()[1]
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


def test_the_array_is_the_same_in_every_process():
    names = repr([sorted(map(repr, c.items())) for c in COMBINATIONS])
    again = covering_array(AXES, problems)[0]
    same = repr([sorted(map(repr, c.items())) for c in again])
    assert zlib.crc32(names.encode()) == zlib.crc32(same.encode())
    assert torch.float32 in IO
