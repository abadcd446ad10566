"""Row lengths, numbers of rows and ranks, in each strategy."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import check, check_spec, run
from support.inputs import case, gradient_like
from support.tables import rows_beyond

LENGTHS = (
    *(1, 2, 3, 17, 64, 127, 128, 255, 257, 769, 1000, 1536, 3584, 4096, 4097),
    *(16384, 16385, 32769),
)
LARGEST = {"auto": 10**9, "row": 16384, "rows": 4096, "loop": 10**9}
STRATEGIES = tuple(LARGEST)
ADD = {"residual": "pre_add", "normalized": "io"}
CENTERED = {"variant": "layer_norm", "bias": True, "save_stats": "always"}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_of_any_length(strategy, length, device):
    if length > LARGEST[strategy]:
        length = LARGEST[strategy] - 1
    for fields, io in ((CENTERED, torch.float32), (ADD, torch.float16)):
        norm = make(**fields, strategy=strategy)
        shape = (rows_beyond(build(norm), norm, length), length)
        check_spec(norm, shape, io, device)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_number_of_rows(strategy, rows, device):
    check_spec(make(**CENTERED, strategy=strategy), (rows, 72), torch.bfloat16, device)


@pytest.mark.parametrize(
    "shape", [(72,), (3, 72), (5, 2, 72), (2, 1, 3, 72), (2, 3, 1, 2, 72)]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_rank(strategy, shape, device):
    norm = make(**CENTERED, residual="pre_add", strategy=strategy)
    check_spec(norm, shape, torch.float16, device)


@pytest.mark.parametrize("shape", [(0, 72), (3, 0, 72), (0, 0, 72)])
@pytest.mark.parametrize("fields", [CENTERED, ADD, {"residual": "post_add"}], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_rows_at_all(strategy, fields, shape, device):
    norm = make(**fields, strategy=strategy)
    inputs = case(norm, shape, torch.bfloat16, device=device)
    done = check(build(norm), norm, inputs)
    for name, gradient in done.gradients.items():
        assert gradient is not None, name
        assert not gradient.any(), name
    (torch.ones(4, device=device) * 2).sum().item()  # the device is still well


@pytest.mark.parametrize("length", [72, (40, 72), (72, 1000)])
def test_a_listed_row_length_is_the_only_one_taken(length, device):
    norm = make(hidden_size=length)
    listed = (length,) if isinstance(length, int) else length
    for each in listed:
        check_spec(norm, (5, each), torch.float32, device)
    inputs = case(norm, (5, 73), torch.float32, device=device)
    with pytest.raises(ValueError, match=r"\bx\b.*73|73.*\bx\b"):
        build(norm).rms_norm(*inputs.arguments())


@pytest.mark.parametrize("strategy", ["row", "rows"])
def test_a_row_longer_than_the_strategy_holds_is_refused(strategy, device):
    norm = make(strategy=strategy)
    length = LARGEST[strategy] + 1
    inputs = case(norm, (1, length), torch.float32, device=device)
    with pytest.raises(ValueError, match=str(length)):
        build(norm).rms_norm(*inputs.arguments())


@pytest.mark.parametrize("length", [72, 1000])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_does_not_depend_on_its_batch(strategy, length, device):
    norm = make(**CENTERED, residual="pre_add", strategy=strategy)
    module = build(norm)
    many = case(norm, (70, length), torch.bfloat16, device=device)
    upstream = {
        "y": gradient_like(many.x, seed=5),
        "residual_sum": gradient_like(many.x, seed=6),
    }
    of_many = run(module, norm, many, upstream)
    for rows in (slice(0, 1), slice(0, 3), slice(5, 69)):
        few = many.with_tensors(x=many.x[rows], residual=many.residual[rows])
        alone = run(module, norm, few, {n: g[rows] for n, g in upstream.items()})
        for name, output in alone.outputs.items():
            assert torch.equal(output, of_many.outputs[name][rows]), name
        for name in ("x", "residual"):
            assert torch.equal(alone.gradients[name], of_many.gradients[name][rows])


@pytest.mark.parametrize("rows", [1, 5, 127, 128, 129])
def test_a_norm_that_may_depend_on_its_batch_is_right_for_any(rows, device):
    norm = make(**CENTERED, batch_invariant=False)
    check_spec(norm, (rows, 72), torch.float32, device)
