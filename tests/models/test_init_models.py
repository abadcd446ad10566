"""Every model type, built on the meta device: what init says of its norms is true.

Each type is built twice: with the defaults of its config class, and with every size
that the table reads doubled and every epsilon made different, so that a key which only
happens to hold the right number does not pass.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Iterator
from pydoc import locate
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM

from normgen.families.resolve import Entry, Model, Place, resolve
from normgen.families.table import TRANSFORMERS, Family, families
from normgen.families.write import spec_text
from normgen.loader import parse
from normgen.spec import Norm

#: Parts that no class of transformers builds alone; the models around them are built.
PARTS = {"gemma3n_vision", "t5_gemma_module"}
TYPES = [name for name in families() if name not in PARTS]

#: What the defaults of a config class lack to build its model at all.
NEEDED: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}
#: What a config class checks against the sizes that the test doubles.
DOUBLED: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_d_head": 256},
    "falcon_h1": {"mamba_d_head": 16},
    "granitemoehybrid": {"mamba_d_head": 256},
    "mamba2": {"head_dim": 256},
    "xlnet": {"d_head": 128},
}
#: Settings under which a model has other norms than by default.
GEMMA4_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cohere", {"use_qk_norm": True}),
    ("deepseek_v3", {"q_lora_rank": None}),
    ("falcon", {"new_decoder_architecture": True}),
    ("falcon", {"parallel_attn": False}),
    ("falcon_h1", {"mamba_rms_norm": True}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_d_ssm": None}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_n_groups": 2}),
    ("gemma4_text", GEMMA4_EXPERTS),
    ("gemma4", {"vision_config": {}, "audio_config": {}}),
    ("glm4_moe", {"use_qk_norm": True}),
    ("gpt2", {"add_cross_attention": True}),
    ("granitemoehybrid", {"layer_types": ["full_attention"] * 32}),
    ("hubert", {"feat_proj_layer_norm": False}),
    ("internvl_vision", {"use_qk_norm": True}),
    ("internvl_vision", {"norm_type": "rms_norm"}),
    ("llama4_text", {"use_qk_norm": False}),
    ("mamba2", {"n_groups": 2}),
    ("modernbert", {"norm_bias": True}),
    ("opt", {"layer_norm_elementwise_affine": False}),
    ("opt", {"do_layer_norm_before": False}),
    ("persimmon", {"qk_layernorm": False}),
    ("phi", {"qk_layernorm": True}),
    ("stablelm", {"qk_layernorm": True}),
    ("wav2vec2", {"feat_extract_norm": "layer", "do_stable_layer_norm": True}),
    ("xlstm", {"use_bias": True}),
]


#: Sizes that differ from each other, of models small enough to run.
SMALL_SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 32,
    "pad_token_id": 0,
}
SMALL: dict[str, dict[str, Any]] = {
    "deepseek_v4": {"num_hidden_layers": 4, "q_lora_rank": 24},
    "gemma3n_text": {
        "activation_sparsity_pattern": [0.0] * 5,
        "hidden_size_per_layer_input": 8,
        "intermediate_size": [64] * 5,
        "laurel_rank": 4,
        "num_hidden_layers": 5,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 32,
    },
    "gemma4_text": {
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 32,
    },
    "hrm_text": {},
    "llama4_text": {
        "intermediate_size_mlp": 64,
        "no_rope_layers": [1, 1],
        "num_local_experts": 2,
    },
    "nanochat": {},
}


def test_the_table_states_this_release() -> None:
    assert transformers.__version__ == TRANSFORMERS


def test_a_nested_config_is_fixed_where_its_class_is() -> None:
    for name, family in families().items():
        classes = CONFIG_MAPPING[name].sub_configs
        for key, part in family.parts.items():
            assert part.fixed == (classes[key] is not AutoConfig), (name, key)


@pytest.mark.parametrize("model_type", TYPES)
def test_the_norms_of_the_defaults_are_named(model_type: str) -> None:
    config = default(model_type)
    said = check(model_type, config)
    if model_type not in NEEDED:
        assert fields_of(resolve(model_type, {}, model_type)) == fields_of(said)


@pytest.mark.parametrize("model_type", TYPES)
def test_sizes_and_eps_come_from_the_right_keys(model_type: str) -> None:
    config = changed(families()[model_type], default(model_type), itertools.count(3))
    check(model_type, config | DOUBLED.get(model_type, {}))


@pytest.mark.parametrize(("model_type", "settings"), VARIANTS)
def test_a_setting_changes_the_norms(model_type: str, settings: dict[str, Any]) -> None:
    check(model_type, CONFIG_MAPPING[model_type](**settings).to_dict())


@pytest.mark.parametrize("model_type", SMALL)
def test_rows_of_norms_without_a_weight_have_the_length_said(model_type: str) -> None:
    """Only a run shows how long the rows of such a norm are."""
    config = CONFIG_MAPPING[model_type](**SMALL_SIZES | SMALL[model_type])
    said = resolve(model_type, config.to_dict(), model_type)
    model = AutoModel.from_config(config).eval()
    seen: dict[str, set[int]] = {}
    for name, module in norm_modules(model):
        if length(module) is None:
            note = functools.partial(note_length, seen, name)
            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 8, dtype=torch.long), use_cache=False)
    assert seen
    for name, module in norm_modules(model):
        if name in seen:
            assert seen[name] <= {
                entry.fields["hidden_size"]
                for entry in said.entries
                for place in entry.places
                if is_at(place, name, module)
            }


def note_length(seen: dict[str, set[int]], name: str, _: Any, inputs: Any) -> None:
    seen.setdefault(name, set()).add(inputs[0].shape[-1])


def default(model_type: str) -> dict[str, Any]:
    """The config of a type as a config.json holds it, every key written out."""
    config = CONFIG_MAPPING[model_type](**NEEDED.get(model_type, {}))
    return config.to_dict()


def changed(
    family: Family, config: dict[str, Any], epsilons: Iterator[int]
) -> dict[str, Any]:
    """The config with the numbers that the family reads changed."""
    config = dict(config)
    for key in dict.fromkeys((*family.defaults, *family.rules)):
        value = config.get(key)
        if key.endswith(("eps", "epsilon")):
            config[key] = next(epsilons) * 1e-6
        elif type(value) is int:
            config[key] = 2 * value
        elif isinstance(value, list) and all(type(v) is int and v > 9 for v in value):
            config[key] = [2 * v for v in value]
    for key in family.parts:
        if config.get(key) is None:
            continue
        inner = families()[config[key]["model_type"]]
        config[key] = changed(inner, config[key], epsilons)
    return config


def check(model_type: str, config: dict[str, Any]) -> Model:
    """Compare a config's spec with the model's own modules."""
    said = resolve(model_type, config, model_type)
    spec = parse(spec_text(said, ""), model_type)
    norms = {norm.name: norm for norm in spec.kernels}
    met: set[str] = set()
    for name, module in norm_modules(build(model_type, config)):
        if type(module).__name__ in said.left_out:
            continue
        fitting = {
            entry.name
            for entry in said.entries
            for place in entry.places
            if is_at(place, name, module) and fits(norms[entry.name], module)
        }
        unknown = length(module) is None  # then several lengths may fit
        assert len(fitting) == 1 or (fitting and unknown), (name, module, fitting)
        met |= fitting
    unmet = [e.name for e in said.entries if e.name not in met and has_modules(e)]
    assert not unmet, unmet
    return said


def fields_of(model: Model) -> list[tuple[str, dict[str, Any]]]:
    return [(entry.name, entry.fields) for entry in model.entries]


def build(model_type: str, config: dict[str, Any]) -> torch.nn.Module:
    made = CONFIG_MAPPING[model_type].from_dict(config)
    with torch.device("meta"):
        if model_type == "gemma3n":
            return gemma3n(made)
        for auto in (AutoModel, AutoModelForCausalLM):
            if type(made) in auto._model_mapping:
                return auto.from_config(made)
        return model_class(type(made))(made)


def gemma3n(config: Any) -> torch.nn.Module:
    """Gemma 3n but for its image encoder, which timm and torchvision would make."""
    modeling = importlib.import_module("transformers.models.gemma3n.modeling_gemma3n")
    embedder = modeling.Gemma3nMultimodalEmbedder
    return torch.nn.ModuleDict(
        {
            "language_model": AutoModel.from_config(config.text_config),
            "audio_tower": AutoModel.from_config(config.audio_config),
            "embed_vision": embedder(config.vision_config, config.text_config),
            "embed_audio": embedder(config.audio_config, config.text_config),
        }
    )


@functools.cache
def model_class(config_class: type) -> type[torch.nn.Module]:
    """The model of a config that has no Auto class: a part of a larger model."""
    path = config_class.__module__.replace("configuration", "modeling")
    module = importlib.import_module(path)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, transformers.PreTrainedModel)
        and value.config_class is config_class
        and not value.__name__.endswith("PreTrainedModel")
    ]
    return classes[-1]


def norm_modules(
    model: torch.nn.Module,
) -> Iterator[tuple[str, torch.nn.Module]]:
    """The norms of a model by name, the numbers of layers left out."""
    for name, module in model.named_modules():
        is_norm = "norm" in type(module).__name__.lower()
        if is_norm and not list(module.children()) and "parametrizations" not in name:
            yield ".".join(w for w in name.split(".") if not w.isdigit()), module


def is_at(place: Place, name: str, module: torch.nn.Module) -> bool:
    return type(module) is locate(place.source or "") and any(
        f".{name}".endswith(f".{end}") for end in place.modules
    )


def fits(norm: Norm, module: torch.nn.Module) -> bool:
    """Whether a module has the length, the eps and the parameters of an entry."""
    parameters = dict(module.named_parameters())
    channels = getattr(module, "data_format", "channels_last") == "channels_first"
    return (
        (length(module) is None or length(module) in norm.lengths)
        and epsilon(module) in (None, norm.eps)
        and ("weight" in parameters) == norm.has_weight
        and ("bias" in parameters) == norm.affine.bias
        and channels == (norm.axis == "channel")
        and group(module) == norm.group_size
        and getattr(module, "norm_before_gate", None)
        in (None, norm.gate is not None and norm.gate.position == "after")
    )


def group(module: torch.nn.Module) -> int | None:
    """How many columns the statistics are taken of; None for a whole row."""
    if hasattr(module, "n_groups"):
        return length(module) // module.n_groups
    if hasattr(module, "num_heads"):
        return module.head_dim
    return getattr(module, "group_size", None)


def length(module: torch.nn.Module) -> int | None:
    """The row length; None where only the caller knows it."""
    weight = getattr(module, "weight", None)
    shape = getattr(module, "normalized_shape", ()) if weight is None else weight.shape
    return shape[-1] if shape else None


def epsilon(module: torch.nn.Module) -> float | None:
    """The eps; None where the code holds it."""
    names = ("variance_epsilon", "eps", "epsilon")
    return next((getattr(module, n) for n in names if hasattr(module, n)), None)


def has_modules(entry: Entry) -> bool:
    return any(place.modules for place in entry.places)


@pytest.mark.parametrize("model_type", sorted(families()))
def test_second_names_of_keys_are_those_that_the_config_class_takes(model_type) -> None:
    """Of attribute_map, or of a keyword that the class reads by itself."""
    made = CONFIG_MAPPING[model_type]
    for key, others in families()[model_type].aliases.items():
        for other in others:
            if other in made.attribute_map:
                assert made.attribute_map[other] == key
            else:
                width = 2 * families()[model_type].defaults[key]
                assert getattr(made(**{other: width}), key) == width
