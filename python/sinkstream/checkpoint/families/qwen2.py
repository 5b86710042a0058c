"""Qwen2 and Qwen2.5: biases on query, key and value only."""

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

_SWITCHES = Switches(qkv_bias=True)


def _from_config(config: Fields) -> DecoderSpec:
    return decoder_from_config(config, "qwen2", _SWITCHES, switched_windows(config))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    return decoder_from_gguf(file, "qwen2", "half", _SWITCHES)


FAMILY = Family("qwen2", _from_config, _from_gguf)
