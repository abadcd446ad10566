"""Random valid specs on random shapes: what no list of cases thought of."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from support.checks import check_spec
from support.fields import IO, LANGUAGE, OWNERS, norm_of, problems
from support.pairs import repair
from support.places import has_samples

AXES = {
    **LANGUAGE,
    "hidden_size": (72, "dynamic"),
    "io": IO,
}
SETTINGS = settings(
    max_examples=60,
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
    for block, owner in OWNERS.items():  # an absent block has no fields
        if chosen[owner] is None:
            chosen |= {f: v[0] for f, v in AXES.items() if f.startswith(f"{block}.")}
    valid = repair(chosen, frozenset(), AXES, problems)
    assume(valid is not None)
    return valid


@SETTINGS
@given(
    combination=specs(),
    length=st.integers(1, 300),
    leading=st.lists(st.integers(1, 9), max_size=3),
    parameters=st.sampled_from(IO),
    others=st.sampled_from(IO),
    seed=st.integers(0, 2**16),
)
def test_a_random_spec_on_a_random_shape(
    device, combination, length, leading, parameters, others, seed
):
    norm = norm_of({k: v for k, v in combination.items() if k != "io"})
    length = norm.lengths[0] if norm.lengths else length
    assume(length > 1 or norm.statistics.variance == "biased")  # else NaN, as in torch
    if torch.Size(leading).numel() > 50:
        leading = leading[:1]
    if norm.axis == "channel":
        shape = (2, length, *leading)
    else:
        heads = (3,) if norm.affine.weight == "per_head" else ()
        samples = (2,) if has_samples(norm) else ()
        shape = (*samples, *leading, *heads, length)
    io = combination["io"]
    check_spec(norm, shape, io, device, parameters=parameters, others=others, seed=seed)
