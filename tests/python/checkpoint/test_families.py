"""From config.json and GGUF metadata to a `DecoderSpec`: every field, and its bounds."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkstream.checkpoint import families
from sinkstream.checkpoint.checkpoint import STORAGE_BLOCKS
from sinkstream.checkpoint.families import ARCHITECTURES, FAMILIES, GgufDescription, find_family
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec, weight_slots
from sinkstream.errors import CheckpointError
from tests.data import tiny
from tests.data.family_configs import FAMILY_CONFIGS, INTERLEAVED, PERMUTED
from tests.python.lanes import cases, products

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 293,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 72,
}


LAYER_NORM = {
    "cohere", "cohere2", "falcon", "gpt_neox", "mpt", "nemotron", "stablelm", "starcoder2",
}  # fmt: skip
LIKE_LLAMA = [name for name in FAMILIES if name not in LAYER_NORM]
"""Families whose configs have the fields of `LLAMA`; test_layer_norm_families.py has the others."""


def test_a_family_is_one_short_file() -> None:
    folder = Path(families.__file__).parent
    lines = {name: len((folder / f"{name}.py").read_text().splitlines()) for name in FAMILIES}
    longest = max(lines, key=lines.__getitem__)
    assert lines[longest] <= 80, f"{longest}.py has {lines[longest]} lines"


def test_every_family_has_a_tiny_checkpoint() -> None:
    variants = (config.get("text_config", config) for config in FAMILY_CONFIGS.values())
    assert {*tiny.FAMILIES, *(config["model_type"] for config in variants)} == set(FAMILIES)


def test_every_block_format_has_a_tiny_checkpoint() -> None:
    assert {name: numbers for name, (numbers, _) in STORAGE_BLOCKS.items()} == tiny.BLOCKS


def from_config(family: str, **changes: Any) -> DecoderSpec:
    values = {**LLAMA, "model_type": family, **changes}
    return FAMILIES[family].spec_from_config(Fields(values, "config.json"))


def switches(spec: DecoderSpec) -> tuple[bool, bool, bool, str]:
    """Return the biases and the norm of queries and keys that all layers have."""
    (found,) = {
        (
            block.attention.qkv_bias,
            block.attention.output_bias,
            block.mlp.bias,
            block.attention.qk_norm,
        )
        for block in spec.blocks
    }
    return found


def test_llama_reads_every_number() -> None:
    spec = from_config("llama")
    assert (spec.family, spec.vocab_size, spec.hidden_size) == ("llama", 293, 96)
    assert (spec.intermediate_size, spec.layers, spec.heads) == (160, 3, 6)
    assert (spec.kv_heads, spec.head_dim, spec.trained_length) == (2, 16, 2048)
    assert (spec.final_norm.eps, spec.ropes[0].pairing, spec.ropes[0].rotary_dim) == (
        1e-5,
        "half",
        16,
    )
    assert switches(spec) == (False, False, False, "none")
    assert not spec.tie_embeddings


def test_switches_of_llama_come_from_its_config() -> None:
    spec = from_config("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    assert switches(spec) == (True, True, True, "none")
    assert spec.tie_embeddings
    assert from_config("llama", head_dim=32).head_dim == 32
    assert from_config("llama", num_key_value_heads=None).kv_heads == 6


def test_qwen2_has_biases_on_query_key_and_value_only() -> None:
    spec = from_config("qwen2", use_sliding_window=False, sliding_window=4096)
    assert switches(spec) == (True, False, False, "none")


def test_qwen3_normalizes_heads_of_128_unless_its_config_says_otherwise() -> None:
    spec = from_config("qwen3")
    assert switches(spec) == (False, False, False, "head")
    assert spec.head_dim == 128
    assert from_config("qwen3", head_dim=32).head_dim == 32
    assert switches(from_config("qwen3", attention_bias=True)) == (True, True, False, "head")


def test_a_window_that_reaches_no_layer_is_accepted() -> None:
    spec = from_config(
        "qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=3,
        layer_types=["full_attention"] * 3,
    )  # fmt: skip
    assert spec.layers == 3


INTEGERS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim",
)  # fmt: skip
NEVER_VALID = (
    0, -1, 2**31, 2**53, 2**63, 10**400, 1.5, math.nan, math.inf, "1", True, [8], {"a": 1},
)  # fmt: skip
REQUIRED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip


@pytest.mark.parametrize(
    ("family", "field", "value"), products(LIKE_LLAMA, INTEGERS, NEVER_VALID), ids=str
)
def test_a_number_out_of_bounds_is_refused(family: str, field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"load: config.json: `{field}` must be an integer"):
        from_config(family, **{field: value})


DEFAULTS = {
    ("gemma3_text", "num_attention_heads"): 8,
    ("gemma3_text", "vocab_size"): 262_208,
    ("gemma3_text", "max_position_embeddings"): 131_072,
    ("gemma3_text", "rms_norm_eps"): 1e-6,
    ("lfm2", "rms_norm_eps"): 1e-5,  # whatever it is: LFM2 has `norm_eps`
}
"""Those of transformers, for configs that leave fields out."""


@pytest.mark.parametrize(("family", "field"), DEFAULTS)
def test_a_missing_number_has_the_default_of_transformers(family: str, field: str) -> None:
    stated = from_config(family, **{field: DEFAULTS[family, field]})
    assert from_config(family, **{field: None}) == stated


@pytest.mark.parametrize(
    ("family", "field"),
    cases(
        [each for each in product(LIKE_LLAMA, REQUIRED) if each not in DEFAULTS],
        always=lambda family, field: family == "llama" or field == "hidden_size",
    ),
)
def test_a_missing_number_is_named(family: str, field: str) -> None:
    with pytest.raises(CheckpointError, match=f"`{field}` must .*, but is missing"):
        from_config(family, **{field: None})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rms_norm_eps": 0}, "`rms_norm_eps` must be a number from"),
    ({"rms_norm_eps": -1e-5}, "but is -1e-05"),
    ({"rms_norm_eps": math.nan}, "but is nan"),
    ({"rms_norm_eps": "1e-5"}, 'but is "1e-5"'),
    ({"hidden_act": "gelu"}, '`hidden_act` must be "silu" or absent, but is "gelu"'),
    ({"hidden_act": ["silu"]}, "`hidden_act` must be"),
    ({"num_key_value_heads": 4}, "`num_key_value_heads` must divide the 6 heads, but is 4"),
    ({"hidden_size": 100}, "`num_attention_heads` must divide the hidden size 100, but is 6"),
    ({"hidden_size": 18}, "`head_dim` must be even, but is 3"),
    ({"head_dim": 17}, "`head_dim` must be even, but is 17"),
    ({"tie_word_embeddings": 1}, "`tie_word_embeddings` must be true or false, but is 1"),
    ({"attention_bias": "yes"}, '`attention_bias` must be true or false, but is "yes"'),
    ({"rope_interleaved": True}, "`rope_interleaved` must be false or absent, but is true"),
    ({"is_encoder_decoder": True}, "`is_encoder_decoder` must be false or absent"),
    ({"sliding_window": 4096}, "`sliding_window` must be absent, but is 4096. This family has"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "`layer_types` must contain only"),
    ({"layer_types": "full_attention"}, "`layer_types` must contain only"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_what_the_decoder_cannot_compute_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_config("llama", **changes)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_layers_have_the_windows_that_the_config_gives_them(family: str) -> None:
    switch = {"use_sliding_window": True, "sliding_window": 64}
    assert from_config(family, **switch, max_window_layers=2).own_windows == (0, 0, 64)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert from_config(family, **switch, layer_types=kinds).own_windows == (64, 0, 64)
    assert from_config(family, sliding_window=64, max_window_layers=2).own_windows == ()


def test_every_layer_of_mistral_has_its_window_unless_it_is_null() -> None:
    assert from_config("mistral").own_windows == (4096,) * 3
    assert from_config("mistral", sliding_window=64).own_windows == (64,) * 3
    assert from_config("mistral", sliding_window=None).own_windows == ()
    kinds = ["sliding_attention"] * 2 + ["full_attention"]
    for window in (64, None):
        with pytest.raises(CheckpointError, match="`layer_types` must contain only"):
            from_config("mistral", sliding_window=window, layer_types=kinds)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"use_sliding_window": False}, "must contain only .* but is"),
        ({"sliding_window": None}, "must contain only"),
        ({"layer_types": ["sliding_attention"]}, "must be a list of 3 words"),
        ({"layer_types": ["sliding_attention", "full_attention", "linear"]}, "must be a list of 3"),
        ({"layer_types": "sliding_attention"}, "must be a list of 3 words"),
    ],
)
def test_layer_types_that_contradict_the_rest_are_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    given = {"use_sliding_window": True, "sliding_window": 64, "layer_types": kinds, **changes}
    with pytest.raises(CheckpointError, match=f"`layer_types` {sentence}"):
        from_config("qwen2", **given)


@pytest.mark.parametrize(
    ("family", "use", "window", "first", "layers"),
    products(
        ["qwen2", "qwen3"],
        [{}, {"use_sliding_window": True}, {"use_sliding_window": False}],
        [{}, {"sliding_window": None}, {"sliding_window": 64}],
        [{}, {"max_window_layers": 0}, {"max_window_layers": 40}],
        [3, 30],
    ),
)
def test_windows_of_single_layers_have_the_defaults_of_transformers(
    family: str, use: dict[str, Any], window: dict[str, Any], first: dict[str, Any], layers: int
) -> None:
    transformers = pytest.importorskip("transformers")
    changes = {"num_hidden_layers": layers, **use, **window, **first}
    theirs = transformers.AutoConfig.for_model(**{**LLAMA, "model_type": family, **changes})
    windows = tuple(
        0 if kind == "full_attention" else theirs.sliding_window for kind in theirs.layer_types
    )
    assert from_config(family, **changes).own_windows == (windows if any(windows) else ())


FIELDS = (
    *INTEGERS, "rms_norm_eps", "hidden_act", "rope_theta", "rope_scaling", "rope_parameters",
    "tie_word_embeddings", "attention_bias", "layer_types", "sliding_window", "max_window_layers",
)  # fmt: skip
SCALING_FIELDS = (
    "type", "rope_type", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "original_max_position_embeddings", "mscale", "mscale_all_dim", "attention_factor",
    "rope_theta",
)  # fmt: skip
ANY_JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([0, 1, 2, 64, 2**31, 2**63, 10**400, 1e-300, 1e300])
    | st.lists(st.integers(), max_size=3)
)  # fmt: skip
ANY_SCALING = st.dictionaries(
    st.sampled_from(SCALING_FIELDS),
    st.sampled_from(["default", "linear", "llama3", "yarn"]) | ANY_JSON,
)


@settings(max_examples=500, deadline=1000)
@given(
    st.sampled_from(LIKE_LLAMA),
    st.dictionaries(st.sampled_from(FIELDS), ANY_JSON | ANY_SCALING, max_size=4),
)
def test_any_config_gives_an_error_or_a_sound_description(
    family: str, changes: dict[str, Any]
) -> None:
    try:
        spec = from_config(family, **changes)
    except CheckpointError as error:
        assert str(error).startswith("load: config.json")  # noqa: PT017 - both outcomes are good
    else:
        for rope in spec.ropes:
            assert rope.rotary_dim <= spec.head_dim
            assert all(math.isfinite(value) for value in rope.inverse_frequencies)
            assert math.isfinite(rope.attention_factor)
        assert spec.heads % spec.kv_heads == 0


@pytest.mark.parametrize(
    ("name", "part"),
    [("dots1", "experts of another kind"), ("deepseek2", "experts of another kind"),
     ("qwen3_5_text", "recurrent layers"), ("lfm2_moe", "recurrent layers"),
     ("gemma4", "heads of different sizes")],
)  # fmt: skip
def test_a_family_with_parts_that_are_planned_is_refused_by_the_part(name: str, part: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_family(name, "config.json has model_type")
    assert str(caught.value) == (
        f'load: config.json has model_type "{name}", which has {part}. Such models are '
        "not supported yet, but support for them is planned."
    )


def test_an_unknown_family_is_an_error_that_lists_the_known() -> None:
    texts = {text for family in FAMILIES.values() for text in family.text_of}
    with pytest.raises(CheckpointError) as caught:
        find_family("gpt2", "config.json has model_type")
    assert str(caught.value) == (
        'load: config.json has model_type "gpt2"; the supported ones are '
        f"{', '.join(sorted({*FAMILIES, *texts}))}."
    )
    with pytest.raises(CheckpointError, match=r'architecture "gemma3_text"; the .* gemma3, '):
        find_family("gemma3_text", "m.gguf has architecture", ARCHITECTURES)


GGUF: dict[str, Any] = {
    "block_count": 3,
    "context_length": 2048,
    "embedding_length": 96,
    "feed_forward_length": 160,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 293,
}


def from_gguf(
    family: str,
    *,
    tensors: tuple[str, ...] = (),
    tokens: int = 0,
    divisors: tuple[float, ...] | None = None,
    **changes: Any,
) -> DecoderSpec:
    values = {**GGUF, **{name.replace("__", "."): value for name, value in changes.items()}}
    named = {k if k.startswith("xielu.") else f"{family}.{k}": v for k, v in values.items()}
    metadata = Fields(named, "m.gguf", f"{family}.")
    file = GgufDescription(metadata, frozenset(tensors), tokens, divisors)
    return FAMILIES[family].spec_from_gguf(file)


_GRANITE: tuple[dict[str, Any], dict[str, Any]] = (
    {"attention__scale": 0.5, "embedding_scale": 3.0, "residual_scale": 0.2, "logit_scale": 4},
    {"attention_multiplier": 0.5, "embedding_multiplier": 3.0, "residual_multiplier": 0.2,
     "logits_scaling": 4},
)  # fmt: skip
_MOE: dict[str, Any] = {"expert_count": 7, "expert_used_count": 3}
_SIZED: dict[str, Any] = {**_MOE, "expert_feed_forward_length": 48}
_ROUTERS = tuple(f"blk.{layer}.ffn_gate_inp.weight" for layer in range(3))
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apertus": (
        {"xielu__alpha_p": [0.203397] * 3, "xielu__alpha_n": [-1.050205] * 3,
         "xielu__beta": [0.5] * 3, "xielu__eps": [-1e-6] * 3},
        {"rope_scaling": {"rope_type": "default"}},
    ),
    "hunyuan_v1_moe": ({**_SIZED, "expert_shared_feed_forward_length": 160}, {}),
    "phimoe": (_MOE, {}),
    "ernie4_5_moe": (
        {**_SIZED, "expert_shared_feed_forward_length": 96, "tensors": _ROUTERS[1:]}, {},
    ),
    "glm4_moe": (
        {**_SIZED, "expert_shared_count": 1, "expert_weights_norm": True,
         "rope__dimension_count": 8, "tensors": _ROUTERS[1:]}, {},
    ),
    "gpt_oss": (
        {**_MOE, "attention__sliding_window": 128},
        {"sliding_window": 128, "rope_scaling": {"rope_type": "default"}},
    ),
    "granite_swa": (
        {**_GRANITE[0], "attention__sliding_window": 64,
         "attention__sliding_window_pattern": [False, True, True]},
        {**_GRANITE[1], "sliding_window": 64},
    ),
    "granitemoe": ({**_GRANITE[0], **_MOE}, _GRANITE[1]),
    "lfm2": (
        {"attention__head_count_kv": [0, 2, 0], "shortconv__l_cache": 4},
        {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4,
         "block_auto_adjust_ff_dim": False},
    ),
    "mellum": (_SIZED, {}),
    "minimax_m2": (_MOE, {}),
    "olmoe": (_MOE, {}),
    "qwen2_moe": (
        {**_SIZED, "expert_shared_feed_forward_length": 72,
         "tensors": ("blk.0.attn_q.bias", *_ROUTERS)}, {},
    ),
    "qwen3_moe": ({**_SIZED, "tensors": _ROUTERS}, {"norm_topk_prob": True}),
    "seed_oss": ({"tensors": ("blk.0.attn_q.bias",)}, {}),
    "gemma2": ({}, {"query_pre_attn_scalar": 16, "sliding_window": 4096}),
    "gemma3_text": (
        {"attention__sliding_window": 32, "rope__freq_base": 1e6, "rope__scaling__factor": 8.0},
        {
            "query_pre_attn_scalar": 16,
            "sliding_window": 32,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "glm4": ({"rope__dimension_count": 8, "tensors": ("blk.0.attn_q.bias",)}, {}),
    "granite": _GRANITE,
    "ministral3": (
        {
            "attention__temperature_scale": 0.1,
            "rope__freq_base": 1e6,
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 16.0,
            "rope__scaling__original_context_length": 16_384,
            "rope__scaling__yarn_log_multiplier": 1.0,
        },
        {},
    ),
}  # fmt: skip
"""Metadata and fields of the same decoder, in addition to those that all families have."""


@pytest.mark.parametrize(
    "architecture", [name for name, family in ARCHITECTURES.items() if family.name in LIKE_LLAMA]
)
def test_a_gguf_file_and_a_folder_describe_the_same_decoder(architecture: str) -> None:
    family = ARCHITECTURES[architecture].name
    metadata, config = SAME.get(family, ({}, {}))
    tensors = ("output.weight", *metadata.get("tensors", ()))
    metadata = {"attention__key_length": 16, **metadata, "tensors": tensors}
    config = {"head_dim": 16, "sliding_window": None, "tie_word_embeddings": False, **config}
    ours, theirs = from_gguf(family, **metadata).as_dict(), from_config(family, **config).as_dict()
    in_folders = "interleaved" if family in INTERLEAVED else "half"
    for description, pairing in (
        (ours, "interleaved" if family in PERMUTED else in_folders),
        (theirs, in_folders),
    ):
        for block in description["blocks"]:
            if "rope" not in block["mixer"]:
                continue
            rope = block["mixer"]["rope"]
            assert rope.pop("pairing") == pairing or not rope["inverse_frequencies"]
    assert ours == theirs


def test_gguf_says_biases_and_ties_by_its_tensors() -> None:
    assert from_gguf("llama").tie_embeddings
    spec = from_gguf(
        "llama",
        tensors=("output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias",
                 "blk.0.ffn_gate.bias"),
    )  # fmt: skip
    assert switches(spec) == (True, True, True, "none")
    assert not spec.tie_embeddings


def test_gguf_counts_its_tokens_where_it_does_not_say_the_vocabulary() -> None:
    assert from_gguf("qwen2", vocab_size=None, tokens=307).vocab_size == 307
    with pytest.raises(CheckpointError, match=r"`qwen2.vocab_size` must .* but is missing"):
        from_gguf("qwen2", vocab_size=None)


@pytest.mark.parametrize(
    "name", ["attention__head_count", "attention__head_count_kv", "feed_forward_length"]
)
def test_gguf_may_give_a_size_once_for_each_layer(name: str) -> None:
    one = GGUF[name.replace("__", ".")]
    assert from_gguf("llama", **{name: [one] * 3}) == from_gguf("llama")
    for wrong in ([one] * 2, [one] * 4, [one, one, one + 2], [], [0] * 3, [one, one, True], ["6"]):
        with pytest.raises(CheckpointError, match="or a list of 3 equal integers, but is "):
            from_gguf("llama", **{name: wrong})


def test_gguf_may_rotate_a_part_of_each_head() -> None:
    spec = from_gguf("llama", rope__dimension_count=8)
    assert (spec.head_dim, spec.ropes[0].rotary_dim) == (16, 8)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"expert_count": 8}, "`llama.expert_used_count` must be an integer from 1 to 8, but is m"),
        ({"logit_scale": 0.5}, "`llama.logit_scale` must be 1.0 or absent, but is 0.5"),
        ({"attention__causal": False}, "`llama.attention.causal` must be true or absent"),
        ({"attention__sliding_window": 64}, "This family has no sliding-window layers"),
        ({"attention__value_length": 32}, "`llama.attention.value_length` must be 16 or absent"),
        ({"attention__head_count_kv": [2, 2, 1]}, r"must be an integer .* but is \[2, 2, 1\]"),
        ({"attention__head_count_kv": 4}, "must divide the 6 heads, but is 4"),
        ({"embedding_length": 100}, "must divide the hidden size 100, but is 6"),
        ({"rope__dimension_count": 7}, "must be even, but is 7"),
        ({"rope__dimension_count": 32}, "must be an integer from 2 to 16, but is 32"),
        ({"block_count": 2**32 - 1}, "must be an integer from 1 to 1024"),
        ({"context_length": 0}, "`llama.context_length` must be an integer"),
        ({"divisors": (1.0,) * 5}, "must be 10, twice the length of rope_freqs.weight, but is 16"),
    ],
)
def test_gguf_metadata_that_the_decoder_cannot_compute_is_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_gguf("llama", **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_slot_has_a_name_of_its_own_in_both_formats(family: str) -> None:
    spec = from_config(family, tie_word_embeddings=False)
    for names in (FAMILIES[family].folder_names, FAMILIES[family].gguf_names):
        found = [names.tensor(slot.name) for slot in weight_slots(spec)]
        assert len(set(found)) == len(found)
