"""Mistral: llama's layers; those of version 0.1 see a window of 4,096 tokens."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.llama import FAMILY as LLAMA
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import gguf_window, one_window
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_WINDOW = 4096  # transformers' default; null says that there is none


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    block = Block(sizes.attention(rope), sizes.dense(), rms_norm_from_config(config))
    windows = one_window(config, _WINDOW)
    return sizes.spec("mistral", block, windows)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    # Seldom: the usual converters write these models as "llama", and permute like it.
    sizes = sizes_from_gguf(file, reads=("attention.sliding_window",))
    rope = gguf_rope(file, sizes, "interleaved")
    block = Block(sizes.attention(rope), sizes.dense(), rms_norm_from_gguf(file.metadata))
    windows = gguf_window(file.metadata, sizes.layers)
    return sizes.spec("mistral", block, windows)


FAMILY = Family(
    "mistral",
    _from_config,
    _from_gguf,
    written=LLAMA.written,
    architectures=("mistral",),
    models="Mistral 7B, Mistral Nemo, Mistral Small 3",
    notes="Most GGUF files have the architecture `llama` or `mistral3`.",
)
