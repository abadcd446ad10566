"""``normgen init``: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, snapshot

from normgen.families.table import families
from normgen.loader import load, parse

ANSWERS = {
    "--variant": "rms_norm",
    "--hidden-size": "hidden_size",
    "--eps": "rms_norm_eps",
    "--rounding-normalized": "io",
    "--weight-offset": "1",
    "--out-dtype": "promote",
}


@pytest.fixture
def config(root: Path) -> Path:
    """A config.json of an unknown model."""
    data = {"model_type": "mine", "hidden_size": 512, "rms_norm_eps": 1e-5}
    path = root / "config.json"
    path.write_text(json.dumps(data))
    return path


def arguments(answers: dict[str, str]) -> list[str]:
    return [word for pair in answers.items() for word in pair]


def test_a_known_type_becomes_a_spec_with_comments(root: Path, run: Run) -> None:
    assert run("init", "qwen3") == (0, "wrote specs/qwen3.yaml\n", "")
    path = root / "specs" / "qwen3.yaml"
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=normgen.schema.json\n")
    for words in (
        "Defaults of transformers 5.24.0: hidden_size 4096, rms_norm_eps 1e-6",
        "  # transformers.models.qwen3.modeling_qwen3.Qwen3RMSNorm\n",
        "  #   q_norm, k_norm: over head_dim, eps from rms_norm_eps\n",
        "  # It rounds x_hat to the dtype of x",
        "    eps: 1e-6\n",
    ):
        assert words in text
    names = [norm.name for norm in load(path).kernels]
    assert names == ["rms_norm", "add_rms_norm", "qk_norm"]
    assert run("init", "qwen3") == (0, "unchanged specs/qwen3.yaml\n", "")
    assert run("render", "specs/qwen3.yaml")[0] == 0


def test_a_config_gives_sizes_and_eps(root: Path, run: Run) -> None:
    data = {"model_type": "llama", "hidden_size": 2048, "rms_norm_eps": 1e-5}
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text(json.dumps(data))
    status, out, err = run("init", "--from", "model/config.json", "--stdout")
    assert (status, err) == (0, "")
    assert "# llama. Sizes and eps from config.json.\n" in out
    assert "Defaults of" not in out
    norm = parse(out, "spec").kernels[0]
    assert (norm.hidden_size, norm.eps) == (2048, 1e-5)


def test_a_file_of_the_user_is_kept_unless_forced(root: Path, run: Run) -> None:
    before = snapshot(root)
    message = "not written: it exists; --force overwrites it, -o names another"
    assert run("init", "llama") == (2, "", f"specs/llama.yaml: {message}\n")
    assert snapshot(root) == before
    assert run("init", "llama", "--force") == (0, "wrote specs/llama.yaml\n", "")
    assert "LlamaRMSNorm" in (root / "specs" / "llama.yaml").read_text()


def test_output_goes_where_it_is_told(root: Path, run: Run) -> None:
    assert run("init", "gemma", "-o", "a/b.yml") == (0, "wrote a/b.yml\n", "")
    assert run("init", "gemma", "-o", "b.txt") == (
        2,
        "",
        "-o b.txt: a spec ends in .yaml or .yml\n",
    )
    (root / "sub").mkdir()
    assert run("init", "xlm-roberta")[1] == "wrote specs/xlm_roberta.yaml\n"
    assert run("init", "gemma", "-o", "sub.yaml", "--stdout")[0] == 2


def test_json_names_the_file(run: Run) -> None:
    status, out, err = run("init", "gpt2", "--format", "json")
    assert (status, err) == (0, "")
    assert json.loads(out)["files"] == {"specs/gpt2.yaml": "wrote"}
    status, out, _ = run("init", "nothing", "--format", "json")
    assert status == 2
    assert json.loads(out)["problems"][0]["path"] == "nothing"
    assert run("init", "gpt2", "--stdout", "--format", "json")[0] == 2


def test_the_list_names_every_type(run: Run) -> None:
    assert run("init", "--list") == (0, "\n".join(families()) + "\n", "")
    out = run("init", "--list", "--format", "json")[1]
    assert json.loads(out)["model_types"] == list(families())


def test_an_unknown_type_stops_with_one_line(root: Path, run: Run) -> None:
    before = snapshot(root)
    status, out, err = run("init", "qwen9")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith('qwen9: model_type: "qwen9" is not a known type (nearest: qw')
    assert "--like TYPE" in err
    assert snapshot(root) == before


def test_another_type_answers_for_an_unknown_one(config: Path, run: Run) -> None:
    status, out, err = run("init", "--from", "config.json", "--like", "llama")
    assert (status, out, err) == (0, "wrote specs/mine.yaml\n", "")
    spec = load(config.parent / "specs" / "mine.yaml")
    assert [norm.hidden_size for norm in spec.kernels] == [512, 512]
    text = (config.parent / "specs" / "mine.yaml").read_text()
    assert "Sizes and eps from config.json; the norms as in llama." in text


def test_answers_describe_an_unknown_norm(config: Path, run: Run) -> None:
    flags = arguments(ANSWERS)
    status, out, err = run("init", "--from", "config.json", *flags, "--stdout")
    assert (status, err) == (0, "")
    (norm,) = parse(out, "spec").kernels
    assert (norm.name, norm.hidden_size, norm.eps) == ("rms_norm", 512, 1e-5)
    assert (norm.affine.weight_offset, norm.affine.bias) == (1, False)
    assert (norm.rounding.normalized, norm.out_dtype) == ("io", "promote")


def test_answers_need_no_config(run: Run) -> None:
    numbers = {"--variant": "layer_norm", "--hidden-size": "768", "--eps": "1e-5"}
    plain = {"--rounding-normalized": "none", "--weight-offset": "0"}
    flags = arguments({**ANSWERS, **numbers, **plain, "--out-dtype": "same"})
    status, out, err = run("init", "mine", *flags, "--bias", "--stdout")
    assert (status, err) == (0, "")
    (norm,) = parse(out, "spec").kernels
    assert (norm.variant, norm.hidden_size, norm.eps) == ("layer_norm", 768, 1e-5)
    assert norm.affine.bias


@pytest.mark.parametrize("open_question", ANSWERS)
def test_no_question_is_answered_by_a_guess(
    config: Path, run: Run, open_question: str
) -> None:
    flags = {key: value for key, value in ANSWERS.items() if key != open_question}
    done = run("init", "--from", "config.json", *arguments(flags))
    assert done == (2, "", f"config.json: still open: {open_question}\n")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (("--hidden-size", "import os"), "import os: is neither a number nor made of"),
        (("--hidden-size", "width"), "width: the config has no such key, and its valu"),
        (("--hidden-size", "0"), "0: expected a positive integer, got 0"),
        (("--eps", "epsilon"), "epsilon: the config has no such key, and its value is"),
        (("--eps", "2"), "2.0: expected a number above 0, at most 1, got 2.0"),
        (("--eps", "nan"), "nan: expected a number above 0, at most 1, got nan"),
    ],
)
def test_an_unusable_answer_is_told(
    config: Path, run: Run, answer: tuple[str, str], message: str
) -> None:
    flags = arguments({**ANSWERS, answer[0]: answer[1]})
    status, out, err = run("init", "--from", "config.json", *flags)
    assert (status, out) == (2, "")
    assert err.startswith(f"config.json: {message}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "init: expected a model type, or --from and a config.json"),
        (("llama", "--from", "config.json"), "init: expected a model type, or --from"),
        (("mine", "--like", "llama"), "--like: needs --from: the sizes of another ty"),
        (("gemma", "--like", "llama"), "gemma: gemma is a known type: its norms need"),
        (("gemma", "--bias"), "gemma: gemma is a known type: its norms need no answ"),
        (
            ("--from", "config.json", "--like", "llama", "--eps", "1e-5"),
            "--like: answers what the other flags ask",
        ),
        (("--from", "none.json"), "none.json: no such file"),
        (("--from", "specs"), "specs: is a directory, expected a file"),
        (("gemma3n_vision",), "gemma3n_vision: model_type: the table has no norm for"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(
    config: Path, run: Run, argv: tuple[str, ...], message: str
) -> None:
    status, out, err = run("init", *argv)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json:1:2: not valid JSON: "),
        ("[]", "config.json: not a config: expected a JSON object"),
        ("[" * 100_000, "config.json: not a config: it is no usable JSON"),
        ("{}", "config.json: model_type: expected a name, got None; --like names one"),
        (
            '{"model_type": 3}',
            "config.json: model_type: expected a name, got 3; ",
        ),
        ('{"model_type": "a\\nb"}', "config.json: model_type: expected a name, got 'a"),
        (
            '{"model_type": "llama", "hidden_size": "x"}',
            "config.json: hidden_size: ",
        ),
    ],
)
def test_an_unusable_config_is_told_in_one_line(
    config: Path, run: Run, text: str, message: str
) -> None:
    config.write_text(text)
    status, out, err = run("init", "--from", "config.json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)


def test_what_the_spec_language_refuses_is_told_before_anything_is_written(
    config: Path, run: Run
) -> None:
    data: dict[str, Any] = {"model_type": "llama", "hidden_size": 2**31}
    config.write_text(json.dumps(data))
    before = snapshot(config.parent)
    status, out, err = run("init", "--from", "config.json", "-o", "new.yaml")
    assert (status, out) == (2, "")
    assert "hidden_size" in err
    assert snapshot(config.parent) == before


def test_replaces_names_the_class_of_every_norm_that_is_a_module(run: Run) -> None:
    status, text, _ = run("init", "qwen3_next", "--stdout", "--replaces")
    assert status == 0
    replaced = {norm.name: norm.replaces for norm in parse(text, "qwen3_next").kernels}
    module = "transformers.models.qwen3_next.modeling_qwen3_next"
    assert replaced == {
        "rms_norm": (f"{module}.Qwen3NextRMSNorm",),
        "add_rms_norm": (),
        "qk_norm": (f"{module}.Qwen3NextRMSNorm",),
        "gated_norm": (f"{module}.Qwen3NextRMSNormGated",),
        "l2_norm": (),
    }


@pytest.mark.parametrize("model_type", sorted(families()))
def test_every_spec_loads_with_what_it_replaces(model_type: str, run: Run) -> None:
    status, text, _ = run("init", model_type, "--stdout")
    told, more, _ = run("init", model_type, "--stdout", "--replaces")
    assert told == status
    assert len(more) >= len(text)


def test_a_second_name_of_a_key_is_read(config: Path, run: Run) -> None:
    config.write_text(json.dumps({"model_type": "gpt2", "hidden_size": 1600}))
    _, text, told = run("init", "--from", str(config), "--stdout")
    assert {norm.hidden_size for norm in parse(text, "gpt2").kernels} == {1600}
    assert "hidden" not in told and "n_embd" not in told


def test_a_default_beside_a_config_is_told(config: Path, run: Run) -> None:
    config.write_text(json.dumps({"model_type": "gpt2", "hidden_szie": 1600}))
    _, _, told = run("init", "--from", str(config), "--stdout")
    assert "not in it, so as transformers does: n_embd 768" in told


def test_a_dotted_key_answers_for_an_unknown_type(config: Path, run: Run) -> None:
    config.write_text(
        json.dumps({"model_type": "mine", "text_config": {"hidden_size": 2048}})
    )
    answers = {**ANSWERS, "--hidden-size": "text_config.hidden_size", "--eps": "1e-6"}
    _, text, _ = run("init", "--from", str(config), "--stdout", *arguments(answers))
    assert parse(text, "mine").kernels[0].hidden_size == 2048
    answers["--hidden-size"] = "text_config.width"
    status, _, error = run("init", "--from", str(config), *arguments(answers))
    assert status == 2
    assert "text_config.width: the config has no such key" in error
