"""Any number of chunks, programs, rows a program and partial sums."""

from __future__ import annotations

import pytest
import torch
from support.build import build, make
from support.checks import check
from support.inputs import case
from support.tables import shrink

BLOCK = 32
NORMS = {
    "llama": make(normalized="io", strategy="loop"),
    "llama_add": make(normalized="io", residual="pre_add", strategy="loop"),
    "unrounded_add": make(
        residual="pre_add",
        residual_sum="float32",
        strategy="loop",
        parameters="float32",
    ),
    "layer_norm": make(
        variant="layer_norm", bias=True, save_stats="always", strategy="loop"
    ),
    "add_layer_norm": make(
        variant="layer_norm", bias=True, residual="pre_add", strategy="loop"
    ),
    "post_add": make(variant="layer_norm", residual="post_add", strategy="loop"),
}


@pytest.mark.parametrize("chunks", range(1, 9))
@pytest.mark.parametrize("name", NORMS)
def test_every_number_of_chunks(name, chunks, device, monkeypatch):
    norm = NORMS[name]
    module = build(norm)
    shrink(monkeypatch, module, norm, programs=2, BLOCK_SIZE=BLOCK)
    for short in (0, 1, BLOCK - 1):
        shape = (7, chunks * BLOCK - short)
        inputs = case(norm, shape, torch.float16, device=device)
        check(module, norm, inputs, f"{name} {shape}")


@pytest.mark.parametrize("length", [8192, 8193, 3 * 8192 - 5])
@pytest.mark.parametrize("name", ["llama_add", "add_layer_norm"])
def test_the_chunks_of_the_launch_table(name, length, device):
    norm = NORMS[name]
    inputs = case(norm, (6, length), torch.bfloat16, device=device)
    check(build(norm), norm, inputs, f"{name} {length}")


@pytest.mark.parametrize("programs", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 11])
@pytest.mark.parametrize("strategy", ["row", "rows", "loop"])
def test_any_number_of_programs_shares_the_rows(
    strategy, rows, programs, device, monkeypatch
):
    norm = make(variant="layer_norm", bias=True, strategy=strategy)
    module = build(norm)
    options = {"ROWS_PER_PROGRAM": 2} if strategy == "rows" else {}
    if strategy == "loop":
        options["BLOCK_SIZE"] = BLOCK
    shrink(monkeypatch, module, norm, programs=programs, **options)
    inputs = case(norm, (rows, 72), torch.float32, device=device)
    check(module, norm, inputs, f"{rows} rows, {programs} programs")


@pytest.mark.parametrize("programs", [31, 32, 33, 65])
def test_any_number_of_partial_sums_is_added_up(programs, device, monkeypatch):
    norm = make(bias=True, strategy="row")
    module = build(norm)
    shrink(monkeypatch, module, norm, programs=programs)
    for length in (1, 63, 64, 65):
        inputs = case(norm, (programs + 3, length), torch.float32, device=device)
        check(module, norm, inputs, f"{programs} partial sums")
