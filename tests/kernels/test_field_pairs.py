"""All pairs of field values, block by block, as covering arrays of some tens of specs.

The kernels and the reference are held to the same bounds: where these leave one value,
as nearly everywhere in 16 bits, both return the same bits.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from support.build import build
from support.checks import call, check
from support.combinations import BLOCKS, COMBINATIONS
from support.fields import LENGTH, accepts, fields_of, norm_of, problems
from support.inputs import case
from support.oracle import Oracle
from support.pairs import all_pairs, covering_array, pairs_of
from support.places import shape_for
from support.tables import rows_beyond

#: interpreter warnings of what float32 does on purpose: exp of a large number
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(COMBINATIONS)]


@pytest.mark.parametrize("index", range(len(COMBINATIONS)), ids=IDS)
def test_a_combination_gives_what_the_contract_says(index, device):
    _, combination = COMBINATIONS[index]
    norm = norm_of(fields_of(combination))
    module, io = build(norm), combination["io"]
    inputs = case(
        norm,
        shape_for(norm, rows_beyond(module, norm, LENGTH), LENGTH),
        io,
        device=device,
        parameters=combination.get("free"),
        others=combination.get("others"),
        seed=index,
    )
    wanted = Oracle(norm, inputs, eager=True).outputs()
    with torch.no_grad():
        copies = inputs.map(torch.clone)
        outputs = call(module, norm, copies, "_reference")
    for output, expected in wanted.items():
        expected.check(outputs[output], f"reference {output}")
    check(module, norm, inputs)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_valid_pair_is_covered(name):
    block = BLOCKS[name]
    covered = set().union(*map(pairs_of, block.combinations))
    dropped = all_pairs(block.axes) - covered
    assert dropped == block.unreachable
    for pair in sorted(dropped, key=repr):
        assert contradicts(block.axes, dict(pair)), (
            f"{dict(pair)} is valid, but was not covered"
        )


#: fields that rules tie together
TIED = (
    *("weight", "bias", "weight_offset", "residual", "residual_sum", "out_dtype"),
    *("backward", "save_stats", "io", "hidden_size", "group_size", "second_affine"),
    *("variant", "eps_placement", "gate.position", "modulation.operands"),
    *("branch_scale.per", "strategy"),
)


def contradicts(axes, pair):
    """Whether no choice of two fields that rules tie together makes the pair valid."""
    harmless = {axis: values[0] for axis, values in axes.items()} | pair
    free = [field for field in TIED if field in axes and field not in pair]
    for some in itertools.combinations(free, 3):
        for values in itertools.product(*(axes[field] for field in some)):
            if not problems(harmless | dict(zip(some, values, strict=True))):
                return False
    return True


def test_there_are_few_enough_to_run_often():
    assert len(COMBINATIONS) <= 190


@pytest.mark.parametrize("name", BLOCKS)
def test_the_array_is_the_same_each_time(name):
    """Workers of xdist must collect the same tests."""
    block = BLOCKS[name]
    assert covering_array(block.axes, problems)[0] == block.combinations


def test_every_dtype_of_x_is_run():
    found = {combination["io"] for _, combination in COMBINATIONS}
    assert found == {torch.float32, torch.bfloat16, torch.float16}
    for _, combination in COMBINATIONS:
        assert accepts(norm_of(fields_of(combination)), combination["io"])
