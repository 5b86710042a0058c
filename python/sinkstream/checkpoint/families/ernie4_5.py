"""ERNIE 4.5 without experts: llama's layers; adjacent dimensions are rotated together."""

from __future__ import annotations

from collections.abc import Collection

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_gguf
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


def dense_from_config(config: Fields, head_dim: int | None = 128) -> DecoderSpec:
    """Return a decoder without experts; `head_dim`: default, as for `sizes_from_config`."""
    sizes = sizes_from_config(config, head_dim, tie_embeddings=True)
    rope = rope_from_config(
        config, sizes.head_dim, sizes.trained_length, pairing="interleaved", base=500_000.0
    )
    has_bias = config.flag("use_bias", False)
    attention = sizes.attention(rope, qkv_bias=has_bias, output_bias=has_bias)
    norm = rms_norm_from_config(config)
    return sizes.spec("ernie4_5", Block(attention, sizes.dense(bias=has_bias), norm))


def dense_from_gguf(file: GgufDescription, reads: Collection[str] = ()) -> DecoderSpec:
    """Return a decoder without experts; `reads`: other fields that its family reads."""
    sizes = sizes_from_gguf(file, reads)
    attention = sizes.attention(gguf_rope(file, sizes, "interleaved"), **biases_from_gguf(file))
    norm = rms_norm_from_gguf(file.metadata)
    return sizes.spec("ernie4_5", Block(attention, sizes.dense(), norm))


FAMILY = Family(
    "ernie4_5",
    dense_from_config,
    dense_from_gguf,
    written=Architecture("ernie4_5", biases=("o",)),
    models="ERNIE-4.5-0.3B",
)
