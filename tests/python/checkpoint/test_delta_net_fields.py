"""Fields that only families with gated delta nets have: their sizes, and which layers attend."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from sinkstream.checkpoint.families import FAMILIES, GgufDescription
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Attention, DecoderSpec, Recurrent
from sinkstream.errors import CheckpointError

SIZES: dict[str, Any] = {
    "model_type": "qwen3_5_text", "hidden_size": 96, "num_hidden_layers": 5,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 293,
    "max_position_embeddings": 2048, "intermediate_size": 160, "rms_norm_eps": 1e-6,
}  # fmt: skip
GGUF: dict[str, Any] = {
    "block_count": 5, "context_length": 2048, "embedding_length": 96, "feed_forward_length": 160,
    "attention.head_count": 6, "attention.head_count_kv": 2, "vocab_size": 293,
    "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 8,
    "attention.layer_norm_rms_epsilon": 1e-6, "ssm.conv_kernel": 4, "ssm.state_size": 20,
    "ssm.group_count": 3, "ssm.time_step_rank": 6, "ssm.inner_size": 168,
}  # fmt: skip


def from_config(**changes: Any) -> DecoderSpec:
    return FAMILIES["qwen3_5_text"].spec_from_config(Fields({**SIZES, **changes}, "config.json"))


def from_gguf(**changes: Any) -> DecoderSpec:
    values = {**GGUF, **{name.replace("__", "."): value for name, value in changes.items()}}
    fields = Fields({f"qwen35.{name}": value for name, value in values.items()}, "m", "qwen35.")
    return FAMILIES["qwen3_5_text"].spec_from_gguf(GgufDescription(fields, frozenset(), 0, None))


def attends(spec: DecoderSpec) -> list[bool]:
    return [isinstance(mixer, Attention) for mixer in spec.mixers]


def delta_net(spec: DecoderSpec) -> Recurrent:
    (found,) = {mixer for mixer in spec.mixers if isinstance(mixer, Recurrent)}
    return found


def test_a_config_without_fields_of_delta_nets_has_the_defaults_of_transformers() -> None:
    spec, theirs = from_config(), transformers.AutoConfig.for_model(**SIZES)
    found = delta_net(spec)
    assert (found.heads, found.key_heads, found.state_size, found.head_dim, found.conv_size) == (
        theirs.linear_num_value_heads, theirs.linear_num_key_heads, theirs.linear_key_head_dim,
        theirs.linear_value_head_dim, theirs.linear_conv_kernel_dim,
    )  # fmt: skip
    assert attends(spec) == [kind == "full_attention" for kind in theirs.layer_types]
    assert (spec.head_dim, spec.ropes[0].rotary_dim) == (theirs.head_dim, 64)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [3]),
        ({"full_attention_interval": 2}, [1, 3]),
        ({"layer_types": ["full_attention", *["linear_attention"] * 4]}, [0]),
    ],
)
def test_a_config_says_which_layers_have_attention(
    changes: dict[str, Any], expected: list[int]
) -> None:
    assert [i for i, attends in enumerate(attends(from_config(**changes))) if attends] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [3]),
        ({"full_attention_interval": 2}, [1, 3]),
        ({"attention__recurrent_layers": [False, *[True] * 4]}, [0]),
        ({"block_count": 6, "nextn_predict_layers": 1}, [3]),
        (
            {"block_count": 6, "nextn_predict_layers": 1,
             "attention__recurrent_layers": [True, False, *[True] * 3, False]},
            [1],
        ),
    ],
)  # fmt: skip
def test_a_file_says_which_layers_have_attention(
    changes: dict[str, Any], expected: list[int]
) -> None:
    spec = from_gguf(**changes)
    assert spec.layers == 5
    assert [i for i, attends in enumerate(attends(spec)) if attends] == expected


def test_files_have_the_value_heads_of_key_heads_in_turn() -> None:
    found = delta_net(from_gguf())
    assert found == Recurrent(
        "delta_net", 4, heads=6, key_heads=3, state_size=20, head_dim=28, heads_in_turn=True
    )
    assert not delta_net(from_gguf(ssm__group_count=6)).heads_in_turn, "there is one order only"
    assert not delta_net(from_config()).heads_in_turn


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"layer_types": ["linear_attention"] * 5}, "`layer_types` must have attention in at"),
        ({"layer_types": ["mamba"] * 5}, 'each "full_attention" or "linear_attention"'),
        ({"num_hidden_layers": 3}, "`layer_types` must have attention in at least one layer"),
        ({"linear_num_key_heads": 5}, "`linear_num_key_heads` must divide the 32 value heads"),
        ({"linear_key_head_dim": 513}, "`linear_key_head_dim` must be an integer from 1 to 512"),
        ({"attention_bias": True}, "`attention_bias` must be false or absent"),
        ({"attn_output_gate": False}, "`attn_output_gate` must be true or absent"),
    ],
)
def test_other_layers_of_a_folder_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(CheckpointError, match=rule):
        from_config(**changes)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("attention__recurrent_layers", [True] * 4, "must be a list of 5 booleans"),
        ("attention__recurrent_layers", [True] * 5, "must leave attention in one layer at least"),
        ("ssm__group_count", 4, "`qwen35.ssm.group_count` must divide the 6 value heads"),
        ("ssm__inner_size", 100, "must be a multiple of the 6 value heads, of up to 1024 for"),
        ("ssm__state_size", None, "`qwen35.ssm.state_size` must .* but is missing"),
        ("attention__sliding_window", 512, "`qwen35.attention.sliding_window` must be 0 or absent"),
    ],
)
def test_other_layers_of_a_file_are_refused(name: str, value: Any, rule: str) -> None:
    with pytest.raises(CheckpointError, match=rule):
        from_gguf(**{name: value})
