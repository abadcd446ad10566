"""What the README shows is what the repository holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normgen.commands import COMMANDS

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "marker, source",
    [("llama spec", "specs/llama.yaml"), ("llama kernel", "generated/llama.py")],
)
def test_an_excerpt_stands_in_its_file(marker: str, source: str) -> None:
    found = re.search(
        rf"<!-- {marker} -->\n```\w+\n(.*?)```\n<!-- end -->", README, flags=re.DOTALL
    )
    assert found is not None
    assert found[1] in (REPOSITORY / source).read_text(encoding="utf-8")


def test_every_command_is_listed_and_no_other() -> None:
    table = re.findall(r"^\| `normgen (\w+)", README, flags=re.MULTILINE)
    assert sorted(table) == sorted(COMMANDS)


def test_every_file_that_it_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (REPOSITORY / target).exists(), target
