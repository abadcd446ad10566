"""The table in the docs is what the cases make; every group and spec has a case."""

from __future__ import annotations

from pathlib import Path

from conformance import table
from conformance.cases import CASES
from conformance.groups import GROUPS

SPECS = Path(__file__).parents[2] / "specs"


def test_the_table_in_the_docs_is_up_to_date() -> None:
    assert table.PATH.read_text(encoding="utf-8") == table.text()


def test_every_group_has_a_class() -> None:
    assert {case.group for case in CASES} == set(GROUPS)


def test_every_spec_has_a_case() -> None:
    used = {case.spec.split(":")[0] for case in CASES if isinstance(case.spec, str)}
    assert {path.stem for path in SPECS.glob("*.yaml")} <= used


def test_every_case_has_an_id_of_its_own() -> None:
    ids = [case.id for case in CASES]
    assert len(ids) == len(set(ids))
