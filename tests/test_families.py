"""The table of model types: valid as a whole, and right where models surprise."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from normgen.errors import NormgenError
from normgen.families.expressions import evaluate, keys
from normgen.families.resolve import Model, resolve
from normgen.families.table import Family, Row, families, kinds
from normgen.families.write import WIDTH, spec_text
from normgen.loader import parse
from normgen.render import render_body
from normgen.spec import SpecFile

#: What a config must say because its class has no default that works.
REQUIRED = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
}
QUOTIENT = (
    "hidden_size // num_attention_heads: cannot be made of hidden_size 2048, num_"
)
TYPES = [name for name, family in families().items() if family.norms or family.parts]
ROWS = [
    pytest.param(family, row, id=f"{name}-{row.name}-{i}")
    for name, family in families().items()
    for i, row in enumerate(family.norms)
]


def model_of(model_type: str, **config: Any) -> Model:
    return resolve(model_type, REQUIRED.get(model_type, {}) | config, "config.json")


def spec_of(model: Model) -> SpecFile:
    return parse(spec_text(model, "From a test."), model.model_type)


def sizes(model: Model) -> dict[str, Any]:
    return {entry.name: entry.fields["hidden_size"] for entry in model.entries}


def message_of(model_type: str, config: dict[str, Any], **more: Any) -> str:
    with pytest.raises(NormgenError) as caught:
        resolve(model_type, config, "config.json", **more)
    (problem,) = caught.value.problems
    return str(problem)


def test_the_table_is_large() -> None:
    assert len(families()) > 200
    assert set(kinds()) == {r.kind for f in families().values() for r in f.norms}


@pytest.mark.parametrize(("family", "row"), ROWS)
def test_a_row_reads_only_what_the_table_gives_or_requires(
    family: Family, row: Row
) -> None:
    assert row.kind in kinds()
    assert (row.path is None) != (row.function is None)
    assert bool(row.modules) == (row.path is not None)
    assert ("eps_placement", "none") in kinds()[row.kind].fields.items() or row.eps
    needed = set(REQUIRED["hunyuan_v1_dense"])
    for text in (row.size, row.when, row.eps, row.stages, row.group_size):
        for key in keys(text) if isinstance(text, str) else ():
            given = key in family.defaults or key in family.rules
            first = key.split(".")[0]
            inside = first in family.parts or first in family.defaults
            assert given or inside or key in needed | {"stage"}, key


@pytest.mark.parametrize("model_type", TYPES)
def test_a_spec_of_every_type_loads(model_type: str) -> None:
    model = model_of(model_type)
    text = spec_text(model, "From a test.")
    assert text.isascii()
    lines = text.splitlines()
    assert all(len(line) <= WIDTH or len(line.split()) == 2 for line in lines)
    spec = parse(text, model_type)
    assert [norm.name for norm in spec.kernels] == [e.name for e in model.entries]
    for norm, entry in zip(spec.kernels, model.entries, strict=True):
        lengths = entry.fields["hidden_size"]
        assert norm.lengths == tuple(
            lengths if isinstance(lengths, list) else [lengths]
        )
        assert norm.eps == entry.fields.get("eps", 0)
    made = [norm.model_dump(exclude={"name"}) for norm in spec.kernels]
    assert all(one not in made[:i] for i, one in enumerate(made))


def test_every_kind_renders_alone_and_fused() -> None:
    rendered: set[tuple[str, Any]] = set()
    for model_type in TYPES:
        model = model_of(model_type)
        new = {(e.kind, e.fields.get("residual")) for e in model.entries} - rendered
        if new:
            assert render_body(spec_of(model)).text
            rendered |= new
    conditional = {"gate_after", "gate_before", "layer_per_head", "llama_bias"}
    assert {kind for kind, _ in rendered} >= set(kinds()) - conditional - {
        "xlstm_heads_bias"
    }


def test_latent_norms_of_deepseek_ignore_the_eps_of_the_config() -> None:
    model = model_of("deepseek_v3", rms_norm_eps=1e-5, q_lora_rank=1536)
    eps = {entry.name: entry.fields["eps"] for entry in model.entries}
    assert eps == {
        "rms_norm": 1e-5,
        "add_rms_norm": 1e-5,
        "q_a_norm": 1e-6,
        "kv_a_norm": 1e-6,
    }
    assert "q_a_norm" not in sizes(model_of("deepseek_v3", q_lora_rank=None))


def test_the_l2_norm_of_llama_4_is_a_mean() -> None:
    norms = {norm.name: norm for norm in spec_of(model_of("llama4_text")).kernels}
    assert norms["qk_norm"].variant == "rms_norm"
    assert norms["qk_norm"].affine.weight == "none"
    assert norms["qk_norm"].hidden_size == 128


def test_gemma_3n_has_plain_weights_and_a_norm_without_one() -> None:
    norms = {norm.name: norm for norm in spec_of(model_of("gemma3n_text")).kernels}
    assert norms["rms_norm"].affine.weight_offset == 0
    assert norms["v_norm"].affine.weight == "none"
    assert norms["v_norm"].hidden_size == norms["qk_norm"].hidden_size == 256
    assert "AltUp" in spec_text(model_of("gemma3n_text"), "From a test.")


def test_qwen3_next_mixes_three_kinds() -> None:
    norms = {norm.name: norm for norm in spec_of(model_of("qwen3_next")).kernels}
    assert norms["rms_norm"].affine.weight_offset == 1
    assert norms["gated_norm"].affine.weight_offset == 0
    assert norms["l2_norm"].variant == "l2_norm"


def test_nested_configs_are_followed_and_their_defaults_taken() -> None:
    config = {
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152},
    }
    model = model_of("gemma3", **config)
    assert sizes(model) == {
        "rms_norm": 2560,
        "rms_norm_add": 2560,
        "qk_norm": 256,
        "embedding_norm": 1152,
        "vision_layer_norm": 1152,
        "vision_add_layer_norm": 1152,
    }
    assert model.assumed["text_config.head_dim"] == 256
    assert "text_config.hidden_size" not in model.assumed


def test_the_text_model_may_be_of_any_known_type() -> None:
    config = {"text_config": {"model_type": "qwen3", "hidden_size": 1024}}
    assert sizes(model_of("llava", **config))["qk_norm"] == 128
    message = message_of("llava", {"text_config": {"model_type": "qwen9"}})
    assert message.startswith(
        'config.json: text_config.model_type: "qwen9" is not a known type (nearest: q'
    )


def test_a_nested_config_of_a_fixed_class_may_bear_the_name_of_the_whole() -> None:
    config = {"vision_config": {"model_type": "qwen2_5_vl", "hidden_size": 1280}}
    assert sizes(model_of("qwen2_5_vl", **config))["vision_rms_norm"] == 1280


def test_older_configs_have_the_text_model_at_the_top() -> None:
    model = model_of("qwen2_vl", hidden_size=3584, rms_norm_eps=1e-6)
    assert sizes(model)["rms_norm"] == 3584


def test_norms_alike_are_one_entry_that_names_all_places() -> None:
    model = model_of("olmo2", num_key_value_heads=8)
    assert sizes(model) == {"rms_norm": 4096, "rms_norm_add": 4096, "k_norm": 1024}
    places = [name for p in model.entries[0].places for name in p.modules]
    assert places == [
        "norm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
        "q_norm",
    ]
    assert all(name in spec_text(model, "") for name in places)


def test_stages_of_a_pyramid_become_a_list_of_lengths() -> None:
    assert sizes(model_of("swin", embed_dim=128, depths=[2, 2, 18])) == {
        "layer_norm": [128, 256, 512],
        "merging_norm": [512, 1024],
        "embedding_norm": 128,
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": "4096"}, "hidden_size: expected a positive integer, got '409"),
        ({"hidden_size": True}, "hidden_size: expected a positive integer, got True"),
        ({"hidden_size": 0}, "hidden_size: expected a positive integer, got 0"),
        ({"hidden_size": None}, "hidden_size: expected a positive integer, got None"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps: expected a number, got '1e-5'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: expected a number above 0, at most 1, "),
        ({"rms_norm_eps": None}, "rms_norm_eps: expected a number, got None"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(
    config: dict[str, Any], message: str
) -> None:
    assert message_of("llama", config).startswith(f"config.json: {message}")


@pytest.mark.parametrize(
    ("model_type", "config", "message"),
    [
        ("swin", {"depths": 4}, "depths: expected a list, got 4"),
        ("qwen3_moe", {"num_attention_heads": "8"}, QUOTIENT),
        ("qwen3_moe", {"num_attention_heads": 0}, QUOTIENT),
        ("gemma3", {"text_config": 7}, "text_config: expected a nested config, got 7"),
        (
            "llava",
            {"text_config": {"model_type": 7}},
            "text_config.model_type: expected a name, got 7",
        ),
        (
            "gemma3",
            {"text_config": {"head_dim": "x"}},
            "text_config.head_dim: expected a positive integer, got 'x'",
        ),
        ("convnext", {"hidden_sizes": []}, "hidden_sizes: expected a positive int"),
    ],
)
def test_an_unusable_config_is_told_by_its_key(
    model_type: str, config: dict[str, Any], message: str
) -> None:
    assert message_of(model_type, config).startswith(f"config.json: {message}")


def test_another_type_lends_its_norms_but_no_value() -> None:
    config = {"hidden_size": 512, "rms_norm_eps": 1e-5}
    model = resolve("mine", config, "config.json", like="llama")
    assert (model.model_type, model.assumed) == ("mine", {})
    assert sizes(model) == {"rms_norm": 512, "add_rms_norm": 512}
    message = "head_dim: the config has no such key, and its value is not guessed"
    assert message_of("mine", config, like="qwen3") == f"config.json: {message}"
    assert message_of("mine", config, like="lama").startswith('--like: model_type: "la')


@pytest.mark.parametrize(
    ("name", "near"), [("lama", "llama"), ("qwen-3", "qwen3"), ("phi5", "phi3")]
)
def test_an_unknown_type_gets_the_nearest_names(name: str, near: str) -> None:
    message = message_of(name, {})
    assert message.startswith(f'config.json: model_type: "{name}" is not a known type')
    assert near in message.split("nearest: ")[1].split(")")[0].split(", ")
    assert "--like TYPE" in message
    assert "--rounding-normalized" in message
    assert "none is near" in message_of("zzzzzz", {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 6),
        ("a * b + 1", 13),
        ("a // 4 - b", -1),
        ("2 ** b", 4),
        ("(a + 15) // 16", 1),
        ("a == 6 and not zero", True),
        ("'x' in names or zero", True),
        ("len(names) * names[-1]", "yy"),
    ],
)
def test_expressions(text: str, value: object) -> None:
    known = {"a": 6, "b": 2, "zero": 0, "names": ["x", "y"]}
    assert evaluate(text, known.__getitem__) == value


@pytest.mark.parametrize(
    "text", ["f(a)", "a.b()", "[a]", "lambda: a", "a if b else c", "a <", "len(a, b)"]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no expression"):
        evaluate(text, lambda key: 1)


def test_the_table_loads_neither_torch_nor_transformers() -> None:
    script = (
        "import sys\nfrom normgen.cli import main\n"
        "assert main(['init', 'llama4', '--stdout']) == 0\n"
        "print(sorted({'torch', 'transformers', 'triton'} & set(sys.modules)),"
        " file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
