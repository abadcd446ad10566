"""All cases, a file for each library and kind."""

from __future__ import annotations

from conformance import (
    cases_blocks,
    cases_diffusers,
    cases_gated,
    cases_inside,
    cases_layer_norms,
    cases_modulated,
    cases_rms_norms,
    cases_timm,
    cases_unit_norms,
)
from conformance.case import Case

CASES: tuple[Case, ...] = (
    *cases_rms_norms.CASES,
    *cases_gated.CASES,
    *cases_layer_norms.CASES,
    *cases_unit_norms.CASES,
    *cases_blocks.CASES,
    *cases_inside.CASES,
    *cases_diffusers.CASES,
    *cases_modulated.CASES,
    *cases_timm.CASES,
)
