"""Qwen3 with experts: of each layer's many experts, a few read each token."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    SIZE,
    experts_from_config,
    experts_from_gguf,
    gguf_layers_with_experts,
    layers_with_experts,
    mixed_layers,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("use_sliding_window", False)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    block = Block(
        sizes.attention(rope, qk_norm="head", **biases_from_config(config)),
        sizes.dense(),
        rms_norm_from_config(config),
    )
    experts = experts_from_config(config, normalize=config.flag("norm_topk_prob", False))
    layers = mixed_layers(block, experts, layers_with_experts(config))
    return sizes.spec("qwen3_moe", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    attention = sizes.attention(
        gguf_rope(file, sizes, "half"), qk_norm="head", **biases_from_gguf(file)
    )
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    experts = experts_from_gguf(file, normalize=True)
    layers = mixed_layers(block, experts, gguf_layers_with_experts(file, sizes.layers))
    return sizes.spec("qwen3_moe", block, layers=layers)


FAMILY = Family(
    "qwen3_moe",
    _from_config,
    _from_gguf,
    written=Architecture("qwen3moe", {**COUNTS, **SIZE}),
    models="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
)
