"""Random valid specs on random shapes: what no list of cases thought of."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.checks import check_spec
from support.fields import IO, VALUES, norm_of, problems
from support.pairs import repair

AXES = {
    **{field: values for field, values in VALUES.items() if field != "hidden_size"},
    "hidden_size": ("dynamic",),
    "io": IO,
}
SETTINGS = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@st.composite
def specs(draw):
    """A valid combination of field values and a dtype of x, repaired where invalid."""
    chosen = {axis: draw(st.sampled_from(values)) for axis, values in AXES.items()}
    return repair(chosen, frozenset(), AXES, problems)


@SETTINGS
@given(
    combination=specs(),
    length=st.integers(1, 300),
    leading=st.lists(st.integers(1, 9), max_size=3),
    parameters=st.sampled_from(IO),
    seed=st.integers(0, 2**16),
)
def test_a_random_spec_on_a_random_shape(
    device, combination, length, leading, parameters, seed
):
    shape = (*leading, length)
    if torch.Size(leading).numel() > 150:
        shape = (leading[0], length)
    norm = norm_of({k: v for k, v in combination.items() if k != "io"})
    io = combination["io"]
    check_spec(norm, shape, io, device, parameters=parameters, seed=seed)
