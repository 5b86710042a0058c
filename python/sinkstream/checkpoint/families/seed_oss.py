"""Seed-OSS: llama's layers, with biases for queries, keys and values."""

from __future__ import annotations

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
from sinkstream.checkpoint.families.weight_names import GGUF_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, 128)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    attention = sizes.attention(
        rope,
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias", False),
    )
    mlp = sizes.dense(bias=config.flag("mlp_bias", False))
    return sizes.spec("seed_oss", Block(attention, mlp, rms_norm_from_config(config)))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(gguf_rope(file, sizes, "half"), **biases_from_gguf(file))
    return sizes.spec(
        "seed_oss", Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    )


FAMILY = Family(
    "seed_oss",
    _from_config,
    _from_gguf,
    gguf_names=GGUF_NAMES.with_names({"mlp_norm": "post_attention_norm.weight"}),
    written=Architecture("seed_oss"),
    models="Seed-OSS-36B",
)
