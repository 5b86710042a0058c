"""Fields that only some families have: defaults as in transformers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from sinkstream.checkpoint.families import ARCHITECTURES, FAMILIES, GgufDescription
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError
from tests.data.family_configs import FAMILY_CONFIGS

SIZES: dict[str, Any] = {
    "vocab_size": 293,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 72,
}
SLIDING, FULL = "sliding_attention", "full_attention"
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}


def from_config(family: str, **changes: Any) -> DecoderSpec:
    config = {**SIZES, "model_type": family, **changes}
    return FAMILIES[family].spec_from_config(Fields(config, "config.json"))


_EXPERTS = {"expert_count": 7, "expert_used_count": 3, "expert_feed_forward_length": 48}
OF_THEIR_OWN: dict[str, dict[str, Any]] = {
    "apertus": {
        "xielu.alpha_p": [0.2] * 8,
        "xielu.alpha_n": [-1.0] * 8,
        "xielu.beta": [0.5] * 8,
        "xielu.eps": [-1e-6] * 8,
    },
    "cohere2": {"logit_scale": 0.25},
    "hunyuan-moe": _EXPERTS,
    "phimoe": _EXPERTS,
    "mpt": {"attention.max_alibi_bias": 8.0},
    "ernie4_5-moe": _EXPERTS,
    "glm4moe": {**_EXPERTS, "expert_shared_count": 1},
    "gpt-oss": _EXPERTS,
    "granitemoe": _EXPERTS,
    "lfm2": {"shortconv.l_cache": 3},
    "mellum": _EXPERTS,
    "minimax-m2": _EXPERTS,
    "olmoe": _EXPERTS,
    "qwen2moe": {**_EXPERTS, "expert_shared_feed_forward_length": 72},
    "qwen3moe": _EXPERTS,
    "qwen3vlmoe": _EXPERTS,
}
"""Metadata that only files of an architecture have, and must have."""


def from_gguf(
    architecture: str, tensors: frozenset[str] = frozenset(), **changes: Any
) -> DecoderSpec:
    values = {
        "block_count": 8,
        "context_length": 2048,
        "embedding_length": 96,
        "feed_forward_length": 160,
        "attention.head_count": 6,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": 293,
        **OF_THEIR_OWN.get(architecture, {}),
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    metadata = {
        name if name.startswith("xielu.") else f"{architecture}.{name}": value
        for name, value in values.items()
    }
    fields = Fields(metadata, "m.gguf", f"{architecture}.")
    return ARCHITECTURES[architecture].spec_from_gguf(GgufDescription(fields, tensors, 0, None))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in FAMILIES),
        ("exaone4", {"sliding_window": 64, "sliding_window_pattern": 3}),
        ("gemma2", {"sliding_window": 64, "layer_types": [FULL] * 4 + [SLIDING] * 4}),
        ("gemma3_text", {"sliding_window_pattern": 3, "rope_theta": 1e5, "head_dim": 32}),
        ("gemma3_text", {"rope_local_base_freq": 5e4, "rope_scaling": LINEAR}),
        ("gemma3_text", {"rope_parameters": {FULL: {**LINEAR, "rope_theta": 3e5}}}),
        ("glm4", {"partial_rotary_factor": 0.25}),
        ("nemotron", {"partial_rotary_factor": 0.25, "rope_scaling": LINEAR}),
        ("olmo3", {"rope_scaling": YARN, "rope_theta": 500_000.0}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 64}),
        ("smollm3", {"use_sliding_window": True}),
        ("smollm3", {"no_rope_layer_interval": 3}),
        ("smollm3", {"no_rope_layers": [1, 0, 0, 1, 1, 1, 0, 1, 1]}),
    ],
)
def test_what_a_config_leaves_out_is_as_in_transformers(
    family: str, changes: dict[str, Any]
) -> None:
    theirs = transformers.AutoConfig.for_model(**{**SIZES, "model_type": family, **changes})
    spec = from_config(family, **changes)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // 6
    assert spec.head_dim == head_dim
    assert spec.tie_embeddings == theirs.tie_word_embeddings
    assert spec.trained_length == theirs.max_position_embeddings
    window = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or [SLIDING if window else FULL] * 8
    windows = tuple(window if kind == SLIDING else 0 for kind in kinds)
    assert spec.own_windows == (windows if any(windows) else ())
    for layer, kind in enumerate(kinds):
        rope = spec.blocks[spec.block_of_layer[layer]].attention.rope
        if does_not_rotate(theirs, layer, kind):
            assert rope.rotary_dim == 0
            continue
        theirs_of_layer = theirs.rope_parameters.get(kind, theirs.rope_parameters)
        partial = theirs_of_layer.get("partial_rotary_factor", 1.0)
        assert rope.rotary_dim == int(head_dim * partial)
        if theirs_of_layer["rope_type"] in ("llama3", "yarn"):
            continue  # test_rope_frequencies.py
        slowed = theirs_of_layer.get("factor", 1.0)
        expected = theirs_of_layer["rope_theta"] ** (-2.0 / rope.rotary_dim) / slowed
        assert rope.inverse_frequencies[1] == pytest.approx(expected, rel=1e-12)


def does_not_rotate(config: transformers.PretrainedConfig, layer: int, kind: str) -> bool:
    if config.model_type == "smollm3":
        return not config.no_rope_layers[layer]
    return config.model_type == "mpt" or (
        config.model_type in ("cohere2", "exaone4") and kind == FULL
    )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("apertus", {"hidden_act": "silu"}, '`hidden_act` must be "xielu" or absent, but is "silu"'),
    ("hunyuan_v1_dense", {"use_cla": True}, "`use_cla` must be false or absent, but is true"),
    (
        "hunyuan_v1_dense",
        {"rope_scaling": {"type": "linear", "alpha": 50.0, "factor": 2.0}},
        '`type` must be "dynamic" or absent, but is "linear"',
    ),
    (
        "hunyuan_v1_moe",
        {"num_experts_per_tok": None, "moe_topk": [3, 3]},
        "`moe_topk` must be an integer from 1 to 7, or a list of 8 equal integers",
    ),
    (
        "phimoe",
        {"rope_scaling": {"type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3}},
        "`long_mscale` must be 1.2 or absent, but is 1.3. An endless text needs the same",
    ),
    (
        "exaone4",
        {"sliding_window": None, "layer_types": [SLIDING] * 8},
        "`layer_types` must conta",
    ),
    ("exaone4", {"sliding_window_pattern": "LLXG"}, "`sliding_window_pattern` must be an integer"),
    ("gemma", {"hidden_act": "silu"}, "`hidden_act` must be one of gelu, gelu_pytorch_tanh, but"),
    ("gemma", {"hidden_activation": "gelu"}, '`hidden_activation` must be "gelu_pytorch_tanh" or'),
    ("gemma2", {"hidden_activation": "gelu"}, '`hidden_activation` must be "gelu_pytorch_tanh" or'),
    ("gemma2", {"use_bidirectional_attention": True}, "`use_bidirectional_attention` must be"),
    ("gemma2", {"attn_logit_softcapping": 0}, "`attn_logit_softcapping` must be a number from 0"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "`query_pre_attn_scalar` must be a number from 1"),
    ("gemma2", {"layer_types": [SLIDING]}, "`layer_types` must be a list of 8 words"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` must be absent"),
    (
        "gemma3_text",
        {"sliding_window_pattern": 4, "layer_types": [FULL, *[SLIDING] * 7]},
        "`layer_types` must agree with `sliding_window_pattern`, but is .* Remove the one that is",
    ),
    (
        "glm4",
        {"partial_rotary_factor": 0.2, "head_dim": 16},
        "rotate an even number of the 16 dim",
    ),
    ("glm4", {"sliding_window": 64}, "This family has no sliding-window layers"),
    ("granite", {"num_local_experts": 8}, "must be 0 or absent, but is 8. This family has no ex"),
    ("granite", {"residual_multiplier": 0}, "`residual_multiplier` must be a number from 1e-06"),
    ("granite", {"logits_scaling": "8"}, '`logits_scaling` must be a number .* but is "8"'),
    ("ministral3", {"rope_scaling": YARN}, "`llama_4_scaling_beta` must be .*, but is missing"),
    ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "`original_max_position_em"),
    ("olmo2", {"sliding_window": 64}, "This family has no sliding-window layers"),
    ("olmo3", {"rope_parameters": {FULL: {"rope_type": "dynamic"}}}, "must be one of default, lin"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "`no_rope_layers` must be a list of 8 numbers, each"),
    ("smollm3", {"no_rope_layers": [2] * 8}, "`no_rope_layers` must be a list of 8 numbers, each"),
    ("smollm3", {"layer_types": [SLIDING] * 8}, "must contain only .* unless `use_sliding"),
]


@pytest.mark.parametrize(("family", "changes", "sentence"), REFUSED)
def test_what_a_family_lacks_is_refused(
    family: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_config(family, **changes)


def longrope(**changes: Any) -> DecoderSpec:
    config = FAMILY_CONFIGS["phi3-longrope-long"]
    scaling = {**config["rope_parameters"], **changes}
    fields = Fields({**config, "rms_norm_eps": 1e-5, "rope_parameters": scaling}, "config.json")
    return FAMILIES["phi3"].spec_from_config(fields)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"short_factor": None}, "`short_factor` must be a list of 12 numbers .*, but is missing"),
        ({"long_factor": [1.0] * 11}, "`long_factor` must be a list of 12 numbers from 0.001 to"),
        ({"long_factor": [1.0] * 11 + [0]}, "`long_factor` must be a list of 12 numbers"),
        ({"long_factor": [1.0] * 11 + [True]}, "`long_factor` must be a list of 12 numbers"),
        ({"long_factor": [1.0] * 11 + [float("nan")]}, "`long_factor` must be a list of 12 num"),
        ({"long_mscale": 1.2}, "`long_mscale` must be absent, but is 1.2"),
    ],
)
def test_factors_of_longrope_that_do_not_fit_are_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        longrope(**changes)


def test_longrope_has_the_frequencies_of_the_capacity() -> None:
    spec = longrope()
    (rope,) = spec.ropes
    assert rope.long is not None
    assert (rope.long.above, rope.rotary_dim) == (128, 24)
    assert spec.at_capacity(4, 124).ropes[0].inverse_frequencies == rope.inverse_frequencies
    assert spec.at_capacity(4, 125).ropes[0].inverse_frequencies == rope.long.inverse_frequencies
    assert spec.at_capacity(4, 125).ropes[0].long is None
    assert rope.inverse_frequencies[11] / rope.long.inverse_frequencies[11] == pytest.approx(
        6.5 / 1.22, rel=1e-12
    )
    assert longrope(type="su", rope_type=None) == spec


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("gemma2", {}, (4096, 0) * 4),
        ("gemma3", {"attention__sliding_window": 64}, (64,) * 5 + (0,) + (64,) * 2),
        ("gemma3", {"attention__sliding_window": 64, "attention__sliding_window_pattern": 4},
         (64, 64, 64, 0) * 2),
        ("olmo2", {}, ()),
        ("olmo2", {"attention__sliding_window": 64,
                   "attention__sliding_window_pattern": [True, False] * 4}, (64, 0) * 4),
        ("exaone4", {}, ()),
        ("exaone4", {"block_count": 64}, (4096, 4096, 4096, 0) * 16),
    ],
)  # fmt: skip
def test_gguf_leaves_windows_to_the_architecture(
    architecture: str, changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert from_gguf(architecture, **changes).own_windows == windows


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - {"mpt"}))  # it has ALiBi
def test_a_file_that_does_not_say_how_much_rotates_means_all(architecture: str) -> None:
    """As llama.cpp does, in GLM-4 too, whose folders mean half."""
    spec = from_gguf(architecture, rope__dimension_count=None)
    assert {rope.rotary_dim for rope in spec.ropes} - {0} == {spec.head_dim}
    spec = from_gguf(architecture, rope__dimension_count=8)
    assert {rope.rotary_dim for rope in spec.ropes} - {0} == {8}


def test_gguf_leaves_the_scale_of_the_largest_gemmas_to_the_architecture() -> None:
    sizes = {"embedding_length": 192, "attention__key_length": 16}
    for architecture, layers in (("gemma2", 46), ("gemma3", 62)):
        scales = {
            from_gguf(architecture, block_count=count, **sizes).blocks[0].attention.scale
            for count in (layers, layers + 1)
        }
        assert scales == {32**-0.5, 16**-0.5}


@pytest.mark.parametrize(
    ("architecture", "changes", "sentence"),
    [
        ("gemma3", {"attention__sliding_window": 64,
                    "attention__sliding_window_pattern": [True] * 7},
         "must be an integer, or a list of 8 booleans, but is"),
        ("glm4", {"rope__dimension_sections": [8, 12, 12, 0]},
         "must be absent, but is .* In files"),
        ("granite", {"logit_scale": 0.0}, "`granite.logit_scale` must be a number from 1e-06"),
        ("granite", {"expert_count": 8}, "`granite.expert_count` must be 0 or absent"),
        ("mistral3", {"attention__temperature_scale": 0.1},
         "`mistral3.rope.scaling.original_context_length` must .*, but is missing"),
    ],
)  # fmt: skip
def test_gguf_metadata_that_a_family_cannot_have_is_refused(
    architecture: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_gguf(architecture, **changes)


def test_a_granite_file_says_whether_it_rotates() -> None:
    assert from_gguf("granite").ropes[0].rotary_dim == 16
    assert from_gguf("granite", rope__scaling__finetuned=False).ropes[0].rotary_dim == 0


def test_a_mistral_file_without_a_temperature_has_none() -> None:
    assert from_gguf("mistral3").blocks[0].attention.temperature == 0


@pytest.mark.parametrize("architecture", ["qwen2moe", "qwen3moe"])
def test_a_qwen_file_without_an_experts_width_gives_all_that_a_token_uses(
    architecture: str,
) -> None:
    names = ("expert_feed_forward_length", "expert_shared_feed_forward_length")
    routers = frozenset(f"blk.{layer}.ffn_gate_inp.weight" for layer in range(8))
    spec = from_gguf(architecture, routers, **dict.fromkeys(names))
    experts = spec.blocks[0].experts
    assert experts is not None
    assert experts.expert.intermediate_size == 160 // 3
    assert experts.shared_size == (160 if architecture == "qwen2moe" else 0)


def test_groups_of_glm_without_a_number_to_choose_leave_one_as_in_transformers() -> None:
    config = {"num_experts": 8, "n_group": 2, "first_k_dense_replace": 0}
    theirs = transformers.AutoConfig.for_model("glm4_moe", n_group=2)
    experts = from_config("glm4_moe", **config).blocks[0].experts
    assert experts is not None
    assert (experts.groups, experts.chosen_groups) == (2, theirs.topk_group) == (2, 1)
