"""Qwen3: each query and key head is normalized before it is rotated."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
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

_HEAD_DIM = 128  # not derived from the hidden size
_TEXT_OF_VL = "qwen3_vl_text"


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, _HEAD_DIM)
    base = 500_000.0 if config.value("model_type") == _TEXT_OF_VL else 10_000.0
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=base)
    block = Block(
        sizes.attention(rope, qk_norm="head", **biases_from_config(config)),
        sizes.dense(),
        rms_norm_from_config(config),
    )
    windows = last_windows(config)
    return sizes.spec("qwen3", block, windows)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    block = Block(
        sizes.attention(
            gguf_rope(file, sizes, "half"),
            qk_norm="head",
            **biases_from_gguf(file),
        ),
        sizes.dense(),
        rms_norm_from_gguf(file.metadata),
    )
    return sizes.spec("qwen3", block)


FAMILY = Family(
    "qwen3",
    _from_config,
    _from_gguf,
    written=Architecture("qwen3"),
    # The text of Qwen3-VL: without images, its three positions of a token are one.
    architectures=("qwen3", "qwen3vl"),
    models="Qwen3, Qwen3-VL",
    text_of=(_TEXT_OF_VL,),
    notes="Of Qwen3-VL, the text.",
)
