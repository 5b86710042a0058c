"""Qwen2 and Qwen2.5: biases on query, key and value only."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import last_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    block = Block(sizes.attention(rope, qkv_bias=True), sizes.dense(), rms_norm_from_config(config))
    windows = last_windows(config)
    return sizes.spec("qwen2", block, windows)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(gguf_rope(file, sizes, "half"), qkv_bias=True)
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    return sizes.spec("qwen2", block)


FAMILY = Family(
    "qwen2",
    _from_config,
    _from_gguf,
    written=Architecture("qwen2", heads_fill=True),
    models="Qwen2, Qwen2.5",
    notes="Per-layer windows are supported.",
)
