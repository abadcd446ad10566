"""Values at the edge: NaN and infinity go where torch lets them, bounds stay finite."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make

H = 40
NAN, INF = float("nan"), float("inf")


def both(device, x, **fields):
    """y and dx of the kernel and of the reference, which torch differentiates."""
    module = build(make(name="some_norm", hidden_size=H, weight="none", **fields))
    found = []
    for call in (module.some_norm, module.some_norm_reference):
        given = x.clone().to(device).requires_grad_()
        y = call(given)
        y.sum().backward()
        found += [y.detach().cpu(), given.grad.cpu()]
    return found


def rows(*special):
    """Three rows, with special values in the first."""
    x = torch.linspace(-1.0, 2.0, 3 * H).reshape(3, H)
    for i, value in enumerate(special):
        x[0, 2 * i] = value
    return x


@pytest.mark.parametrize("special", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "fields",
    [
        {"post_activation": "relu"},
        {"post_activation": "relu", "variant": "layer_norm"},
        {
            "eps_placement": "clamp_norm",
            "variant": "l2_norm",
            "statistics.root": "sqrt",
        },
        {"eps_placement": "clamp_stat"},
        {"eps_placement": "outside_sqrt", "variant": "l2_norm", "max_norm": 2.0},
    ],
    ids=str,
)
def test_what_is_no_number_is_seen_where_torch_shows_it(fields, special, device):
    y, dx, expected, _ = both(device, rows(special), **fields)
    assert torch.equal(y.isnan(), expected.isnan())
    assert dx[1:].isfinite().all()  # the other rows know nothing of it


@pytest.mark.parametrize("max_norm, eps", [(1e-3, 0.5), (7e-4, 1e-3), (2.0, 1e-6)])
def test_a_clipped_row_near_0_has_the_gradient_of_torch(max_norm, eps, device):
    x = rows() * torch.tensor([[0.0], [1e-12], [1.0]])
    fields = {"variant": "l2_norm", "max_norm": max_norm, "eps": eps}
    _, dx, _, expected = both(device, x, eps_placement="outside_sqrt", **fields)
    assert torch.allclose(dx, expected, rtol=1e-4, atol=1e-6 * expected.abs().max())


def test_columns_beyond_the_statistic_get_nothing_of_it(device):
    x = rows()
    x[0, H - 1] = INF
    fields = {"statistics.columns": 8}
    y, dx, expected, expected_dx = both(device, x, **fields)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(dx[:, 8:].isnan(), expected_dx[:, 8:].isnan())


@pytest.mark.parametrize("strided", [False, True])
def test_the_gradient_of_a_factor_may_have_any_strides(strided, device):
    module = build(
        make(name="some_norm", hidden_size=H, weight="none", output="factor")
    )
    found = []
    for call in (module.some_norm, module.some_norm_reference):
        x = rows().to(device).requires_grad_()
        upstream = torch.linspace(1.0, 2.0, 6, device=device)[::2, None]
        if not strided:
            upstream = torch.ones((), device=device).expand(3, 1)
        call(x).backward(upstream)
        found.append(x.grad.cpu())
    assert torch.allclose(*found, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("place", ["x", "gate"])
def test_only_x_may_be_the_residual_that_is_overwritten(place, device):
    fields = {"residual": "pre_add", "residual_in_place": True, "backward": False}
    norm = make(name="some_norm", hidden_size=H, **fields, **{"gate.position": "after"})
    module = build(norm)
    given = {name: rows().to(device) for name in ("x", "gate")}
    weight = torch.ones(H, device=device)
    if place == "x":
        x = given["x"]
        _, total = module.some_norm(x, weight, x, given["gate"])
        assert total.data_ptr() == x.data_ptr()
        assert torch.equal(total.cpu(), 2 * rows())
        return
    with pytest.raises(ValueError, match="residual: expected memory apart from gate"):
        module.some_norm(given["x"], weight, given["gate"], given["gate"])


@pytest.mark.parametrize("heads", [0, 65536])
def test_heads_that_no_grid_holds_are_refused(heads, device):
    module = build(make(name="some_norm", hidden_size=1, weight="per_head"))
    x, weight = torch.zeros(1, heads, 1), torch.zeros(heads, 1)
    with pytest.raises(ValueError, match=f"1 to 65535 heads, got {heads}"):
        module.some_norm(x.to(device), weight.to(device))
