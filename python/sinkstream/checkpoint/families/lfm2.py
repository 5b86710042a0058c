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
    convolution_from_config,
    convolution_from_gguf,
    inner_size,
    with_convolutions,
)
from sinkstream.checkpoint.families.sizes import (
    MAX_EPS,
    MIN_EPS,
    gguf_rope,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec, Norm

_EARLIER = {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"}
"""Earlier names of fields, which count where a config has both."""


def _from_config(config: Fields) -> DecoderSpec:
    for name, earlier in _EARLIER.items():
        if config.has(earlier):
            config = config.without(name).renamed({name: (earlier,)})
    sizes = sizes_from_config(config, tie_embeddings=True)
    sizes = replace(sizes, intermediate_size=inner_size(config, sizes.intermediate_size))
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=1e6)
    norm = Norm("rms", config.number("norm_eps", MIN_EPS, MAX_EPS, 1e-5))
    block = Block(sizes.attention(rope, qk_norm="head"), sizes.dense(), norm)
    attends = attends_from_config(config, sizes.layers)
    layers = with_convolutions(block, convolution_from_config(config), attends)
    return sizes.spec("lfm2", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    attends, file = attends_from_gguf(file)
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(gguf_rope(file, sizes, "half"), qk_norm="head")
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    layers = with_convolutions(block, convolution_from_gguf(file.metadata), attends)
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
