"""LFM2: short convolutions in most layers; attention that normalizes each head in the others."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.lfm2_parts import (
    FOLDER_NAMES_OF_LFM2,
    GGUF_CONVOLUTIONS,
    GGUF_NAMES_OF_LFM2,
    attends_from_config,
    attends_from_gguf,
    block_from_config,
    block_from_gguf,
    convolution_from_config,
    convolution_from_gguf,
    inner_size,
    with_convolutions,
    with_usual_names,
)
from sinkstream.checkpoint.families.sizes import sizes_from_config, sizes_from_gguf
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec

_EARLIER = {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"}
"""Earlier names of fields, which count where a config has both."""


def _from_config(config: Fields) -> DecoderSpec:
    config = with_usual_names(config, _EARLIER)
    sizes = sizes_from_config(config, tie_embeddings=True)
    sizes = replace(sizes, intermediate_size=inner_size(config, sizes.intermediate_size))
    block = block_from_config(config, sizes)
    attends = attends_from_config(config, sizes.layers)
    layers = with_convolutions([block] * sizes.layers, convolution_from_config(config), attends)
    return sizes.spec("lfm2", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    attends, file = attends_from_gguf(file)
    sizes = sizes_from_gguf(file)
    block = block_from_gguf(file, sizes)
    convolution = convolution_from_gguf(file.metadata)
    layers = with_convolutions([block] * sizes.layers, convolution, attends)
    return sizes.spec("lfm2", block, layers=layers)


FAMILY = Family(
    "lfm2",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES_OF_LFM2,
    gguf_names=GGUF_NAMES_OF_LFM2,
    written=Architecture("lfm2", GGUF_CONVOLUTIONS, heads_fill=True),
    models="LFM2, LFM2.5",
    notes="On CPUs only.",
)
