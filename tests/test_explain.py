"""``normgen explain`` says what a norm computes, moves and launches, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from renderings import ROOT, every_norm, spec_of
from support.build import make

from normgen.cli import main
from normgen.explain import explain
from normgen.launch import launch
from normgen.plan import plan


def explained(**fields):
    return explain(plan(make(**fields)))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def spec(name: str) -> str:
    return str(ROOT / "specs" / f"{name}.yaml")


LLAMA = """\
add_rms_norm(x, weight, residual) -> y, residual_sum
  RMSNorm of x + residual, and that sum, over rows of 4096.
      h = x + residual
      y = h / sqrt(mean(h^2) + 1e-05) * weight

  Numerics
      h = x + residual, rounded to x.dtype.
      In float32: mean_square = mean(h * h), rstd = 1 / sqrt(mean_square + 1e-05), \
x_hat = h * rstd.
      rounded = x_hat, rounded to x.dtype.
      y = rounded * weight, rounded to the promotion of x.dtype and weight.dtype.
      Gradients are computed in float32 and rounded once; a rounding passes its \
gradient on.

  Bytes moved, parameters aside
"""


def test_llama_is_explained_in_words(capsys) -> None:
    text = printed(capsys, spec("llama"))
    assert text.startswith("specs/llama.yaml\n")
    assert LLAMA in text
    assert "bfloat16  8 a value, 32768 a row" in text
    assert re.search(r"forward, row: .+\n +4096  BLOCK_SIZE 4096, num_warps", text)
    assert "out_dtype: promote returns float32" in text


def test_bert_is_explained_in_words(capsys) -> None:
    text = printed(capsys, spec("bert"))
    assert "layer_norm(x, weight, bias) -> y\n" in text
    assert "y = (x - mean(x)) / sqrt(var(x) + 1e-12) * weight + bias\n" in text
    assert (
        "variance = mean(centered * centered), rstd = 1 / sqrt(variance + 1e-12)"
        in text
    )
    assert "y is stored rounded to x.dtype." in text
    assert "forward, rows: " in text
    assert "torch.nn.functional.layer_norm computes this norm too" in text


def test_a_dynamic_norm_is_explained_by_ranges(capsys) -> None:
    text = printed(capsys, spec("dynamic"))
    assert "rms_norm(x, weight, eps) -> y\n" in text
    assert "over rows of any length." in text
    assert "a row\n" not in text
    assert re.search(r"^ +32768\+  BLOCK_SIZE", text, re.MULTILINE)
    assert "Every row length compiles its own kernels" in text


@pytest.mark.parametrize("name", ["llama", "bert", "dynamic"])
def test_json_holds_the_same_as_the_words(name: str, capsys) -> None:
    words = printed(capsys, spec(name))
    document = json.loads(printed(capsys, "--format", "json", spec(name)))
    (norms,) = document["specs"].values()
    assert [n["name"] for n in norms] == [n.name for n in spec_of_name(name).kernels]
    for norm in norms:
        for text in (norm["summary"], *norm["formula"], *norm["numerics"]):
            assert f" {text}\n" in words
        for text in norm["advice"]:
            assert f" {text}\n" in words
        assert f"{norm['call']} -> {', '.join(norm['returns'])}\n" in words
        for moved in norm["traffic"]:
            assert f"{moved['bytes_per_value']} a value" in words


def spec_of_name(name: str):
    return spec_of(Path(spec(name)))


def test_several_specs_are_explained_at_once(capsys) -> None:
    document = json.loads(printed(capsys, "--format", "json", spec("t5"), spec("vit")))
    assert list(document["specs"]) == ["specs/t5.yaml", "specs/vit.yaml"]


#: fields, bytes a value forward and backward of a bfloat16 x, and of a float32 one
TRAFFIC = [
    ({}, (4, 6), (8, 12)),  # x -> y; dy, x -> dx
    ({"bias": True, "variant": "layer_norm"}, (4, 6), (8, 12)),
    ({"residual": "pre_add"}, (8, 8), (16, 16)),  # x, r -> y, h; dy, dh, h -> dx
    ({"residual": "post_add"}, (6, 6), (12, 12)),  # x, r -> y; dy, x -> dx
    ({"out_dtype": "float32"}, (6, 8), (8, 12)),
    ({"residual": "pre_add", "residual_dtype": "float32"}, (12, 14), (16, 16)),
    ({"residual": "pre_add", "residual_sum": "float32"}, (8, 10), (16, 20)),
]


@pytest.mark.parametrize("fields, half, single", TRAFFIC, ids=str)
def test_the_bytes_are_those_of_the_tensors_read_and_written(fields, half, single):
    found = {
        (moved["x"], moved["direction"]): moved
        for moved in explained(**fields, hidden_size=4096)["traffic"]
    }
    for x, wanted in (("bfloat16", half), ("float16", half), ("float32", single)):
        for direction, size in zip(("forward", "backward"), wanted, strict=True):
            moved = found[x, direction]
            assert moved["bytes_per_value"] == size
            assert moved["bytes_per_row"] == 4096 * size


@pytest.mark.parametrize("lengths", [(768, 4096), (4096, 768)])
def test_the_bytes_of_a_row_are_those_of_the_longest(lengths) -> None:
    moved = explained(hidden_size=lengths)["traffic"][0]
    assert moved["bytes_per_row"] == 4096 * moved["bytes_per_value"]


def test_a_norm_without_backward_moves_and_launches_forward_only() -> None:
    found = explained(backward=False)
    for part in ("traffic", "launches"):
        assert {entry["direction"] for entry in found[part]} == {"forward"}
    assert not any("Gradients" in line for line in found["numerics"])


NORMS = every_norm()


@pytest.mark.parametrize("name", NORMS)
def test_launches_are_those_that_the_tables_hold(name: str) -> None:
    norm = NORMS[name]
    made = plan(norm)
    found = explain(made)
    lengths = [
        e["row_length"] for e in found["launches"] if e["direction"] == "forward"
    ]
    assert lengths == sorted(lengths)
    assert not norm.lengths or lengths == sorted(norm.normalized_lengths)
    for entry in found["launches"]:
        direction, strategy = entry["direction"], entry["strategy"]
        options = launch(entry["row_length"], direction, strategy).options
        assert entry["options"] == options
        assert entry["why"]
    assert any(e["or_longer"] for e in found["launches"]) == (not norm.lengths)
    json.dumps(found)


TORCH_TOO = "computes this norm too"
COMPILES = "compiles its own kernels"
IDLE = "columns idle"
PROMOTES = "promote returns float32"
UPDATES = "lose updates"

#: fields -> the advice that must stand, and no other
ADVICE = [
    ({"hidden_size": 4096}, [TORCH_TOO]),
    ({"hidden_size": 4096, "variant": "layer_norm", "bias": True}, [TORCH_TOO]),
    ({"hidden_size": 4096, "normalized": "io"}, []),
    ({"hidden_size": 4096, "residual": "pre_add"}, []),
    ({"hidden_size": 4096, "weight_offset": 1.0}, []),
    ({"hidden_size": 4096, "eps_placement": "outside_sqrt"}, []),
    ({"normalized": "io"}, [COMPILES]),
    ({"hidden_size": (4096, 2100), "normalized": "io"}, [IDLE]),
    ({"hidden_size": 3072, "normalized": "io"}, []),
    ({"hidden_size": 128, "normalized": "io", "out_dtype": "promote"}, [PROMOTES]),
    ({"hidden_size": 128, "normalized": "io", "parameters": "same"}, [UPDATES]),
    (
        {
            "hidden_size": 128,
            "normalized": "io",
            "parameters": "same",
            "backward": False,
        },
        [],
    ),
    # torch.nn.functional.rms_norm takes no bias
    ({"hidden_size": 128, "bias": True}, []),
    # nothing is bfloat16 here, and nothing is promoted
    (
        {
            "hidden_size": 128,
            "normalized": "io",
            "dtype": ("float32",),
            "parameters": "same",
        },
        [],
    ),
    (
        {
            "hidden_size": 128,
            "normalized": "io",
            "dtype": ("float32",),
            "out_dtype": "promote",
        },
        [],
    ),
]


@pytest.mark.parametrize("fields, wanted", ADVICE, ids=str)
def test_advice_stands_where_it_helps_and_nowhere_else(fields, wanted) -> None:
    found = explained(**fields)["advice"]
    assert len(found) == len(wanted), found
    for line, part in zip(found, wanted, strict=True):
        assert part in line


def test_idle_columns_are_those_of_a_block_that_is_launched() -> None:
    """Of a row in chunks, the block is the chunk."""
    found = explained(hidden_size=9000, strategy="loop", normalized="io")
    blocks = {entry["options"]["BLOCK_SIZE"] for entry in found["launches"]}
    for line in found["advice"]:
        told = re.search(r"a block of (\d+)", line)
        assert told is None or int(told[1]) in blocks
