"""Qwen3: each query and key head is normalized before it is rotated."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import (
    Family,
    GgufDescription,
    Switches,
    decoder_from_config,
    decoder_from_gguf,
    switched_windows,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec

_HEAD_DIM = 128  # not derived from the hidden size


def _from_config(config: Fields) -> DecoderSpec:
    attention_bias = config.flag("attention_bias", False)
    switches = Switches(qkv_bias=attention_bias, output_bias=attention_bias, qk_norm=True)
    return decoder_from_config(config, "qwen3", switches, switched_windows(config), _HEAD_DIM)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    switches = Switches(
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=True,
    )
    return decoder_from_gguf(file, "qwen3", "half", switches)


FAMILY = Family("qwen3", _from_config, _from_gguf)
