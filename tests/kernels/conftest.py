"""What every test of the generated kernels stands on."""

from __future__ import annotations

import pytest
from support import allocations


@pytest.fixture(autouse=True)
def _interpreter(
    bfloat16_rounds_to_nearest: None, alignment_claims_are_checked: None
) -> None:
    """Every kernel test runs with the repaired cast, and with claims looked at."""


@pytest.fixture(autouse=True)
def _poisoned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Every torch.empty holds NaN between canaries; the canaries are looked at after.

    An output that no store reached stays NaN, and a store past the end shows.
    """
    if not getattr(request.module, "POISONED", True):
        yield
        return
    with allocations.poisoned(monkeypatch) as guards:
        yield
        guards.assert_intact()
