"""Mistral: llama's layers; those of version 0.1 see a window of 4,096 tokens."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import (
    Family,
    GgufDescription,
    Switches,
    decoder_from_config,
    decoder_from_gguf,
    one_window,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec

_WINDOW = 4096  # transformers' default; null says that there is none


def _from_config(config: Fields) -> DecoderSpec:
    return decoder_from_config(config, "mistral", Switches(), one_window(config, _WINDOW))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    # Seldom: the usual converters write these models as "llama", and permute like it.
    return decoder_from_gguf(file, "mistral", "interleaved", Switches(), has_windows=True)


FAMILY = Family("mistral", _from_config, _from_gguf)
