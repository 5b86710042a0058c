"""Qwen3.5: gated delta nets in most layers; attention with a gate on its output in the others."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.delta_parts import (
    FOLDER_NAMES_OF_QWEN3_5,
    GGUF_DELTA_NETS,
    GGUF_NAMES_OF_QWEN3_5,
    HEAD_DIM,
    SECTIONS,
    layers_from_config,
    layers_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import sizes_from_config, sizes_from_gguf
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, HEAD_DIM)
    layers = layers_from_config(config, sizes, sizes.dense())
    return sizes.spec("qwen3_5_text", layers[0], layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    layers = layers_from_gguf(file, sizes, sizes.dense(), in_turn=True)
    return sizes.spec("qwen3_5_text", layers[0], layers=layers)


FAMILY = Family(
    "qwen3_5_text",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES_OF_QWEN3_5,
    gguf_names=GGUF_NAMES_OF_QWEN3_5,
    written=Architecture("qwen35", {**GGUF_DELTA_NETS, **SECTIONS}, heads_in_turn=True),
    models="Qwen3.5, Qwen3.6",
    notes="The dense sizes, text only, on CPUs only.",
)
