"""``patch`` puts generated norms in the place of others, ``unpatch`` puts them back."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pydantic import ValidationError
from support.build import load, make, text_of
from support.toys import (
    LAYER_NORM,
    LLAMA,
    RMS,
    Block,
    H,
    ToyNorm,
    UnitNorm,
    generated,
    path,
)

from normgen.loader import parse
from normgen.patching import patching
from normgen.plan import plan


@pytest.fixture
def norms() -> ModuleType:
    return generated(RMS)


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    blocks = [Block(ToyNorm(H)) for _ in range(2)]
    return torch.nn.Sequential(*blocks, ToyNorm(H))


def test_a_spec_that_replaces_nothing_has_no_patch() -> None:
    text = text_of(make(hidden_size=H))
    assert "patch" not in text.lower()
    assert patching([plan(make(hidden_size=H))]) is None


def test_results_and_gradients_are_the_same(norms, model) -> None:
    x = torch.randn(3, H)
    expected = model(x)
    expected.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    report = norms.patch(model)
    assert report.replaced == [
        ("0.norm", "rms_norm"),
        ("1.norm", "rms_norm"),
        ("2", "rms_norm"),
    ]
    assert not report.left
    assert isinstance(model[0].norm, norms.RMSNorm)
    assert torch.equal(model(x), expected)
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])


def test_parameters_are_the_same_objects_and_names_in_the_same_order(norms, model):
    parameters = list(model.named_parameters())
    state = model.state_dict()
    norms.patch(model)
    assert [name for name, _ in parameters] == [n for n, _ in model.named_parameters()]
    for (_, before), after in zip(parameters, model.parameters(), strict=True):
        assert before is after
    assert list(state) == list(model.state_dict())
    assert state._metadata.keys() == model.state_dict()._metadata.keys()
    model.load_state_dict(state, strict=True)


def test_a_second_patch_replaces_nothing_and_says_so(norms, model) -> None:
    norms.patch(model)
    modules = list(model.modules())
    report = norms.patch(model)
    assert not report.replaced
    assert report.left == [
        (name, "is replaced already") for name in ("0.norm", "1.norm", "2")
    ]
    assert list(model.modules()) == modules


def test_unpatch_puts_the_very_norms_back(norms, model) -> None:
    modules = list(model.modules())
    norms.patch(model)
    assert norms.unpatch(model) == ["0.norm", "1.norm", "2"]
    assert list(model.modules()) == modules
    assert norms.unpatch(model) == []


def test_training_goes_on_before_and_after(norms, model) -> None:
    model[0].eval()
    norms.patch(model)
    assert [m.training for m in (model[0].norm, model[1].norm)] == [False, True]
    model.eval()
    norms.unpatch(model)
    assert not model[1].norm.training


def test_an_optimizer_made_before_moves_the_weights(norms, model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms.patch(model)
    before = model[2].weight.clone()
    model(torch.randn(2, H)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[2].weight, before)
    norms.unpatch(model)
    assert not torch.equal(model[2].weight, before)


def test_what_takes_the_place_of_a_parameter_stays_after_unpatch(norms, model) -> None:
    norms.patch(model)
    state = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    model.to(torch.bfloat16)
    assert norms.unpatch(model)
    assert model[2].weight.dtype == torch.bfloat16
    assert not model[2].weight.any()


def test_a_shared_norm_is_replaced_once_and_everywhere(norms) -> None:
    norm = ToyNorm(H)
    model = torch.nn.Sequential(Block(norm), Block(norm), norm)
    report = norms.patch(model)
    assert [name for name, _ in report.replaced] == ["0.norm", "1.norm", "2"]
    assert model[0].norm is model[1].norm is model[2] is not norm
    assert len(norms.unpatch(model)) == 3
    assert model[0].norm is model[1].norm is model[2] is norm


def test_a_shared_block_is_patched_once(norms) -> None:
    block = Block(ToyNorm(H))
    norm = block.norm
    model = torch.nn.ModuleDict({"first": block, "second": block})
    assert len(norms.patch(model).replaced) == 2
    assert isinstance(block.norm, norms.RMSNorm)
    norms.unpatch(model)
    assert block.norm is norm


def test_tied_weights_stay_tied(norms) -> None:
    model = torch.nn.Sequential(ToyNorm(H), ToyNorm(H))
    model[1].weight = model[0].weight
    norms.patch(model)
    assert model[1].weight is model[0].weight
    assert len(list(model.parameters())) == 1


def test_attributes_of_the_norm_can_still_be_read(norms, model) -> None:
    model[2].note = "of the model's own"
    norms.patch(model)
    assert model[2].variance_epsilon == 1e-6
    assert model[2].note == "of the model's own"
    assert model[2].weight.shape == (H,)
    assert repr(model[2]) == "RMSNorm(8, eps=1e-06)"


def test_hooks_of_a_replaced_norm_stay_with_the_norm(norms, model) -> None:
    norms.patch(model)
    calls = []
    handle = model[2].register_forward_hook(lambda *_: calls.append(1))
    model(torch.randn(2, H))
    norms.unpatch(model)
    model(torch.randn(2, H))
    handle.remove()
    model(torch.randn(2, H))
    assert len(calls) == 2


COPIES: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: _saved(model),
}


def _saved(model: torch.nn.Module) -> torch.nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", COPIES)
def test_a_patched_model_can_be_copied(how, norms, model) -> None:
    norms.patch(model)
    copied = COPIES[how](model)
    x = torch.randn(2, H)
    assert torch.equal(copied(x), model(x))
    assert copied[2].weight is not model[2].weight
    with torch.no_grad():
        copied[2].weight.mul_(2)
    expected = copied(x)
    assert len(norms.unpatch(copied)) == 3
    assert type(copied[2]) is ToyNorm
    assert torch.equal(copied(x), expected)
    assert isinstance(model[2], norms.RMSNorm)


def test_torch_compile_takes_a_patched_model_in_one_graph(norms, model) -> None:
    norms.patch(model)
    x = torch.randn(2, H)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_it_works_on_the_meta_device(norms) -> None:
    with torch.device("meta"):
        model = Block(ToyNorm(H))
    assert norms.patch(model).replaced == [("norm", "rms_norm")]
    assert model(torch.empty(2, H, device="meta")).shape == (2, H)
    model.to_empty(device="cpu")
    norms.unpatch(model)
    assert model.norm.weight.device.type == "cpu"


@pytest.mark.gpu
def test_the_kernels_run_on_a_gpu(norms, model) -> None:
    model.cuda()
    x = torch.randn(3, H, device="cuda")
    expected = model(x)
    assert len(norms.patch(model).replaced) == 3
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_is_exact_too(dtype, norms, model) -> None:
    model.to(dtype)
    x = torch.randn(3, H, dtype=dtype)
    expected = model(x)
    norms.patch(model)
    assert torch.equal(model(x), expected)


def test_other_modules_are_not_spoken_of(norms) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(H), UnitNorm())
    report = norms.patch(model)
    assert (report.replaced, report.left) == ([], [])


def test_the_first_entry_that_fits_takes_a_norm(model) -> None:
    heads = make(**LLAMA, name="qk_norm", hidden_size=4, replaces=(path(ToyNorm),))
    norms = generated(RMS, heads, name="two_entries")
    model = torch.nn.Sequential(ToyNorm(4), ToyNorm(H), ToyNorm(5))
    report = norms.patch(model)
    assert report.replaced == [("0", "qk_norm"), ("1", "rms_norm")]
    assert report.left == [
        (
            "2",
            "rms_norm: hidden_size: expected 8, got 5; "
            "qk_norm: hidden_size: expected 4, got 5",
        )
    ]
    assert str(report) == (
        "replaced 2, left 1\n  1 by qk_norm\n  1 by rms_norm\n"
        "  left 2: rms_norm: hidden_size: expected 8, got 5; "
        "qk_norm: hidden_size: expected 4, got 5"
    )


def test_two_files_patch_one_model_and_each_undoes_its_own(norms) -> None:
    other = generated(
        make(variant="layer_norm", bias=True, replaces=(LAYER_NORM,)), name="other"
    )
    model = torch.nn.Sequential(ToyNorm(H), torch.nn.LayerNorm(H))
    assert len(norms.patch(model).replaced) == 1
    assert other.patch(model).replaced == [("1", "layer_norm")]
    assert norms.unpatch(model) == ["0"]
    assert isinstance(model[1], other.LayerNorm)
    assert other.unpatch(model) == ["1"]


def test_two_files_for_one_class_do_not_pile_up(norms, model) -> None:
    other = generated(RMS, name="the_same_again")
    norms.patch(model)
    assert {why for _, why in other.patch(model).left} == {"is replaced already"}
    assert other.unpatch(model) == []


@pytest.mark.parametrize("function", ["patch", "unpatch"])
def test_a_model_that_is_none_is_named(function, norms) -> None:
    with pytest.raises(TypeError, match=r"model: expected a torch.nn.Module, got dict"):
        getattr(norms, function)({})
    with pytest.raises(ValueError, match=r"model: expected a module that holds norms"):
        getattr(norms, function)(ToyNorm(H))
    model = torch.nn.Sequential(ToyNorm(H))
    norms.patch(model)
    with pytest.raises(ValueError, match=r"got a RMSNorm"):
        getattr(norms, function)(model[0])


def test_a_report_counts_and_lists(norms, model) -> None:
    assert str(norms.patch(model)) == "replaced 3, left 0\n  3 by rms_norm"
    assert repr(norms.PatchReport()) == "replaced 0, left 0"


LONG = "transformers.models.a_long_name_of_a_model.modeling_a_long_name_of_a_model"
PATHS = (
    f"{LONG}.Short",
    f"{LONG}.ANormWithALongName",
    f"{LONG}.ANormWithALongName" + "X" * 200,
    "a." + "B" * 77,
    "a." + "B" * 78,
    "a." + "B" * 79,
)


@pytest.mark.parametrize("count", [1, 2, len(PATHS)])
def test_the_text_is_clean_however_long_the_names(count, tmp_path: Path) -> None:
    fields = {"hidden_size": H, "replaces": PATHS[-count:]}
    widest = make(
        name="longest_norm_name_of_all",
        variant="layer_norm",
        bias=True,
        weight="per_head",
        eps="argument",
        **fields,
    )
    text = text_of(widest, make(**fields, weight="none"), make(**LLAMA, name="plain"))
    assert all(len(line) <= 88 for line in text.split("\n"))
    module = load(text)
    assert set(module._STAND_INS) == set(PATHS[-count:])
    assert all(len(made) == 2 for made in module._STAND_INS.values())
    file = tmp_path / "module.py"
    file.write_text(text, encoding="utf-8")
    for command in (["format", "--check"], ["check", "--select=B,C4,E,F,I,PIE,RUF,W"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_public(norms) -> None:
    assert {"PatchReport", "patch", "unpatch"} < set(norms.__all__)
    assert norms.__all__ == sorted(norms.__all__)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"residual": "pre_add"}, "takes a residual"),
        ({"save_stats": "always"}, "returns several tensors"),
        ({"second_affine": True}, "returns several tensors"),
        ({"replaces": ("torch.nn.LayerNorm",)}, "write torch.nn.modules.normalization"),
        ({"replaces": ("LayerNorm",)}, "is no path of a class"),
        ({"name": "patch_report"}, "would shadow PatchReport"),
    ],
)
def test_what_cannot_stand_for_another_is_refused(fields, message) -> None:
    with pytest.raises(ValidationError) as caught:
        make(**{"replaces": (path(ToyNorm),), **fields})
    assert message in str(caught.value.errors())


DOCUMENT = (Path(__file__).parent.parent / "docs" / "patching.md").read_text("utf-8")


def block(marker: str) -> str:
    """The code of the documentation that follows a marker."""
    found = re.search(
        rf"<!-- {marker} -->\n```\w+\n(.*?)```\n", DOCUMENT, flags=re.DOTALL
    )
    assert found is not None
    return found[1]


def test_the_documented_example_runs_and_prints_what_it_says(
    monkeypatch, capsys
) -> None:
    norms = generated(*parse(block("spec"), "docs").kernels, name="docs")
    monkeypatch.setitem(sys.modules, "norms", norms)
    code = block("example")
    exec(code, {})
    comments = re.findall(r"^# (.*)$", code, flags=re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == comments


def test_the_documented_spec_of_several_norms_is_one() -> None:
    norms = generated(*parse(block("qwen3"), "docs").kernels, name="qwen3")
    ((_, stand_ins),) = norms._STAND_INS.items()
    assert list(stand_ins) == ["rms_norm", "qk_norm"]
