"""Ministral 3: Mistral's layers, whose queries are scaled up with their position."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture, Value, attention_of
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    MAX_LENGTH,
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

_HEAD_DIM, _MAX_BETA = 128, 100
_BETA, _LENGTH = "attention.temperature_scale", "rope.scaling.original_context_length"  # in GGUF
_DEFAULTS = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
}


def _from_config(config: Fields) -> DecoderSpec:
    config = config.with_defaults(_DEFAULTS)
    sizes = sizes_from_config(config, _HEAD_DIM)
    scaling = config.group("rope_scaling") or config.group("rope_parameters") or config
    attention = sizes.attention(
        rope_from_config(config, sizes.head_dim, sizes.trained_length),
        temperature=scaling.number("llama_4_scaling_beta", 0, _MAX_BETA),
        temperature_length=scaling.whole("original_max_position_embeddings", 1, MAX_LENGTH),
    )
    block = Block(attention, sizes.dense(), rms_norm_from_config(config))
    windows = one_window(config, None)
    return sizes.spec("ministral3", block, windows)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    # Files of Mistral Small 3 have this architecture too, and no temperature.
    metadata, sizes = file.metadata, sizes_from_gguf(file, ("attention.sliding_window",))
    beta = metadata.number(_BETA, 0, _MAX_BETA, 0.0)
    length = metadata.whole(_LENGTH, 1, MAX_LENGTH, None if beta else 1)
    attention = sizes.attention(
        gguf_rope(file, sizes, "interleaved"), temperature=beta, temperature_length=length
    )
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(metadata))
    windows = gguf_window(metadata, sizes.layers)
    return sizes.spec("ministral3", block, windows)


_FIELDS: dict[str, Value] = {
    _BETA: lambda spec: attention_of(spec).temperature or None,
    _LENGTH: lambda spec: attention_of(spec).temperature_length,
}

FAMILY = Family(
    "ministral3",
    _from_config,
    _from_gguf,
    written=Architecture(
        "mistral3", _FIELDS, schemes=("llama3",), has_log_multiplier=True, pairs_adjoin=True
    ),
    models="Ministral 3, Devstral 2",
    notes="Text only.",
)
