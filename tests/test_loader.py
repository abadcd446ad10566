"""What the loader takes, and what it says of what it does not take.

The golden messages stand beside the bad specs in golden/bad_specs.  After a change of
wording, write them anew and read the diff:

    NORMGEN_UPDATE_GOLDEN=1 pytest -n0 tests/test_loader.py
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from normgen.errors import NormgenError
from normgen.header import spec_digest
from normgen.loader import load, parse

BAD_SPECS = Path(__file__).parent / "golden" / "bad_specs"
GOOD = """\
version: 1
kernels:
  - name: rms_norm
    variant: rms_norm
    hidden_size: 4096
    eps: 1e-5
    affine: {bias: true}  # a comment
"""


def messages(text: str) -> list[str]:
    with pytest.raises(NormgenError) as caught:
        parse(text, "spec.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", sorted(BAD_SPECS.glob("*.yaml")), ids=lambda p: p.stem)
def test_a_bad_spec_gets_exactly_its_messages(path: Path) -> None:
    with pytest.raises(NormgenError) as caught:
        load(path, path.name)
    said = f"{caught.value}\n"
    expected = path.with_suffix(".txt")
    if os.environ.get("NORMGEN_UPDATE_GOLDEN"):
        expected.write_text(said, encoding="utf-8", newline="\n")
    assert said == expected.read_text(encoding="utf-8")


def test_every_bad_spec_has_messages_and_every_message_a_spec() -> None:
    specs = {path.stem for path in BAD_SPECS.glob("*.yaml")}
    assert len(specs) >= 30
    assert specs == {path.stem for path in BAD_SPECS.glob("*.txt")}


@pytest.mark.parametrize("path", sorted(BAD_SPECS.glob("*.yaml")), ids=lambda p: p.stem)
def test_problems_come_in_file_order_one_line_each(path: Path) -> None:
    with pytest.raises(NormgenError) as caught:
        load(path, path.name)
    places = [(p.line or 0, p.column or 0) for p in caught.value.problems]
    assert places == sorted(places)
    assert all(len(str(p).splitlines()) == 1 for p in caught.value.problems)


@pytest.mark.parametrize(
    "spelling", ["1e-5", "1.0e-5", "1E-5", "1e-05", "0.00001", ".1e-4", "+1e-5"]
)
def test_every_spelling_of_a_number_is_the_same_spec(spelling: str) -> None:
    spec = parse(GOOD.replace("1e-5", spelling), "spec.yaml")
    assert spec.kernels[0].eps == 1e-5
    assert spec_digest(spec) == spec_digest(parse(GOOD, "spec.yaml"))


def test_the_order_of_fields_and_stated_defaults_do_not_change_the_spec() -> None:
    other = """\
kernels:
- affine:
    weight: "vector"
    bias: True
  eps: 1.0e-5
  hidden_size: 0x1000
  variant: 'rms_norm'
  backward: true
  name: rms_norm
version: 1
"""
    same = parse(other, "spec.yaml"), parse(GOOD, "spec.yaml")
    assert same[0] == same[1]
    assert spec_digest(same[0]) == spec_digest(same[1])


def test_another_eps_is_another_spec() -> None:
    other = parse(GOOD.replace("1e-5", "1e-6"), "spec.yaml")
    assert spec_digest(other) != spec_digest(parse(GOOD, "spec.yaml"))


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(path) == parse(GOOD, "spec.yaml")


def test_places_are_those_of_an_editor_after_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfvershun: 1\r\nkernels: 3\r\n")
    with pytest.raises(NormgenError) as caught:
        load(path, "spec.yaml")
    assert [(p.line, p.column) for p in caught.value.problems] == [(1, 1), (2, 10)]


def test_comments_may_hold_any_script() -> None:
    text = GOOD.replace("a comment", "größer 层归一化 🎉")
    assert parse(text, "spec.yaml") == parse(GOOD, "spec.yaml")


def test_a_file_that_is_no_utf8_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes("version: 1\n# é caf".encode() + b"\xe9\n")
    with pytest.raises(NormgenError) as caught:
        load(path, "spec.yaml")
    expected = "spec.yaml:2:8: not UTF-8: byte 0xe9 cannot be decoded"
    assert str(caught.value) == expected


def test_utf16_is_told_and_not_traced(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(NormgenError, match="not UTF-8: byte 0xff"):
        load(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NormgenError, match=r"^gone\.yaml: no such file$"):
        load(tmp_path / "gone.yaml", "gone.yaml")
    with pytest.raises(NormgenError, match=r"^specs: is a directory, expected a file$"):
        load(tmp_path, "specs")


def test_a_path_through_a_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NormgenError, match=r"^s\.yaml: cannot be read: Not a dir"):
        load(tmp_path / "file" / "s.yaml", "s.yaml")


def test_a_misspelled_required_field_is_one_problem() -> None:
    assert messages(GOOD.replace("eps:", "epss:")) == [
        'spec.yaml:6:5: kernels[0].epss: unknown field; did you mean "eps"?'
    ]


def test_both_lines_of_a_duplicate_are_named() -> None:
    assert messages(GOOD + "    eps: 1e-6\n") == [
        "spec.yaml:8:5: kernels[0].eps: given twice, on lines 6 and 8"
    ]


def test_other_problems_are_told_beside_a_duplicate() -> None:
    assert len(messages(GOOD + "    eps: 1e-6\n    strategy: x\n")) == 2


def test_a_newer_version_is_the_only_thing_told() -> None:
    (message,) = messages(GOOD.replace("version: 1", "version: 2") + "flavour: x\n")
    assert message.startswith("spec.yaml:1:10: version: version 2 is newer")
    assert "upgrade" in message


def test_a_damaged_spec_never_ends_in_a_traceback() -> None:
    rng = random.Random(7)
    pieces = [
        *"\n\t :-[]{}&*!%@`'\"#|>?,<.019eE~\\",
        "\r\n",
        "é",
        "---\n",
        "<<: ",
        "!!x ",
    ]
    for _ in range(500):
        text = list(GOOD)
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(text))
            if rng.random() < 0.5:
                text.insert(at, rng.choice(pieces))
            else:
                del text[at : at + rng.randint(1, 6)]
        try:
            parse("".join(text), "spec.yaml")
        except NormgenError as error:
            assert error.problems, "".join(text)
            assert all("\n" not in str(p) for p in error.problems), "".join(text)


@pytest.mark.parametrize("text", ["[a]\nb: 1\n", "[a]\nb\n", '"a"\nb\n'])
def test_text_beside_the_mapping_is_told_without_the_parsers_words(text: str) -> None:
    (message,) = messages(text)
    assert message.endswith(
        ": not valid YAML: expected one mapping, and nothing after it"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "# Title\n\nSome text: here\n"),
        ("pyproject.toml", "[tool]\nx = 1\n"),
        ("run.sh", "set -e\n"),
    ],
)
def test_a_file_of_another_kind_is_no_spec(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(NormgenError) as caught:
        load(tmp_path / name, name)
    assert str(caught.value) == f"{name}: is no spec; a spec is a .yaml file"


def test_a_spec_of_another_suffix_is_read_and_its_faults_are_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spec.txt"
    path.write_text(GOOD)
    assert load(path) == parse(GOOD, "spec.yaml")
    path.write_text(GOOD.replace("eps:", "epss:"))
    with pytest.raises(NormgenError, match=r'did you mean "eps"\?$'):
        load(path)


def test_what_a_refused_key_may_hold_is_not_told_as_missing() -> None:
    anchored = "version: 1\nbase: &b {name: x}\nkernels:\n  - <<: *b\n    eps: 1e-5\n"
    assert [m.partition(": ")[2] for m in messages(anchored)] == [
        "base: unknown field",
        "base: anchors are not supported; remove &b",
        "kernels[0]: merge keys (<<) are not supported; write out the fields",
    ]
    assert messages(GOOD.replace("eps:", "&e eps:")) == [
        "spec.yaml:6:5: kernels[0]: a key must be a field name"
    ]
    assert messages("<<: {version: 1}\n" + GOOD.partition("\n")[2]) == [
        "spec.yaml:1:1: merge keys (<<) are not supported; write out the fields"
    ]


def test_no_conflict_is_told_with_what_a_refused_key_may_hold() -> None:
    merged = GOOD + "    <<: {residual: pre_add}\n    residual_sum: float32\n"
    (message,) = messages(merged)
    assert "merge keys" in message


def test_what_another_entry_lacks_is_told_beside_a_merge_key() -> None:
    text = "version: 1\nkernels:\n  - <<: {eps: 1}\n  - eps: 1e-5\n"
    assert sum("required field is missing" in m for m in messages(text)) == 3
