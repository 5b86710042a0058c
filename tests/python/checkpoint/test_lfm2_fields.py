"""Fields that only LFM2 has: the size of its MLPs, and which layers are convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from sinkstream.checkpoint.families import FAMILIES, GgufDescription
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Attention, DecoderSpec, Recurrent
from sinkstream.errors import CheckpointError

SIZES: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 293, "max_position_embeddings": 2048,
    "intermediate_size": 160,
}  # fmt: skip
GGUF: dict[str, Any] = {
    "block_count": 3, "context_length": 2048, "embedding_length": 96, "feed_forward_length": 160,
    "attention.head_count": 6, "attention.head_count_kv": [0, 2, 0], "vocab_size": 293,
    "attention.layer_norm_rms_epsilon": 1e-5, "shortconv.l_cache": 3,
}  # fmt: skip


def from_config(**changes: Any) -> DecoderSpec:
    return FAMILIES["lfm2"].spec_from_config(Fields({**SIZES, **changes}, "config.json"))


def from_gguf(**changes: Any) -> DecoderSpec:
    values = {**GGUF, **{name.replace("__", "."): value for name, value in changes.items()}}
    fields = Fields({f"lfm2.{name}": value for name, value in values.items()}, "m.gguf", "lfm2.")
    return FAMILIES["lfm2"].spec_from_gguf(GgufDescription(fields, frozenset(), 0, None))


def attends(spec: DecoderSpec) -> list[bool]:
    return [isinstance(mixer, Attention) for mixer in spec.mixers]


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"intermediate_size": 12288}, 8192),  # LFM2-1.2B
        ({"block_ff_dim": 6656}, 4608),  # LFM2-350M
        ({"intermediate_size": 160, "block_ff_dim": 10240}, 6912),
        ({"intermediate_size": 12288, "block_auto_adjust_ff_dim": False}, 12288),
        ({"intermediate_size": 1000, "block_multiple_of": 16}, 672),
        ({"intermediate_size": 1000, "block_ffn_dim_multiplier": 1.5}, 1024),
    ],
)
def test_the_size_of_the_mlps_is_adjusted_as_in_transformers(
    changes: dict[str, Any], size: int
) -> None:
    assert from_config(**changes).intermediate_size == size
    config = transformers.AutoConfig.for_model(**{**SIZES, "vocab_size": 8, **changes})
    mlp = transformers.models.lfm2.modeling_lfm2.Lfm2MLP(config)
    assert mlp.w1.out_features == size


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True]),
        ({"full_attn_idxs": [1]}, [False, True, False]),
        ({"layer_types": ["full_attention", "conv", "conv"]}, [True, False, False]),
    ],
)
def test_layers_without_attention_are_convolutions(
    changes: dict[str, Any], expected: list[bool]
) -> None:
    spec = from_config(conv_L_cache=4, **changes)
    assert attends(spec) == expected
    found = {mixer for mixer in spec.mixers if isinstance(mixer, Recurrent)}
    assert found == ({Recurrent("short_conv", 4)} if False in expected else set())
    theirs = transformers.AutoConfig.for_model(**{**SIZES, **changes})
    assert [kind != "conv" for kind in theirs.layer_types] == expected


def test_gguf_has_no_key_heads_in_layers_that_are_convolutions() -> None:
    spec = from_gguf()
    assert attends(spec) == [False, True, False]
    assert spec.kv_heads == 2
    assert attends(from_gguf(attention__head_count_kv=2)) == [True] * 3


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"layer_types": ["conv"] * 3}, "`layer_types` must contain at least one layer with"),
        ({"layer_types": ["conv", "mamba", "conv"]}, "each \"conv\" or \"full_attention\""),
        ({"conv_L_cache": 1}, "`conv_L_cache` must be an integer from 2 to 64, but is 1"),
        ({"full_attn_idxs": [3]}, "`full_attn_idxs` must be a list of integers from 0 to 2"),
    ],
)  # fmt: skip
def test_other_layers_of_a_folder_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(CheckpointError, match=rule):
        from_config(**changes)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *(
            ("attention__head_count_kv", value, "must be a list of 3 integers: 0 for a convolution")
            for value in ([0, 2], [0, 2, 3], [0, 0, 0], [])
        ),
        ("attention__head_count_kv", [0, 5, 0], "`lfm2.attention.head_count_kv` must divide the 6"),
        ("attention__head_count_kv", [0, "2", 0], "must be an integer from 1 to 1024"),
        ("attention__sliding_window", 512, "`lfm2.attention.sliding_window` must be 0 or absent"),
        ("shortconv__l_cache", None, "`lfm2.shortconv.l_cache` must .* but is missing"),
    ],
)
def test_other_layers_of_a_file_are_refused(name: str, value: Any, rule: str) -> None:
    with pytest.raises(CheckpointError, match=rule):
        from_gguf(**{name: value})
