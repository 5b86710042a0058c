"""Qwen3.5 with experts: of each layer's many experts a few read each token, and a gated one all."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.delta_parts import (
    FOLDER_NAMES_OF_QWEN3_5,
    GGUF_DELTA_NETS,
    GGUF_NAMES_OF_QWEN3_5,
    HEAD_DIM,
    SECTIONS,
    SHARED_EXPERT,
    layers_from_config,
    layers_from_gguf,
)
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    SHARED_SIZE,
    SIZE,
    experts_from_config,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    MAX_INTERMEDIATE,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    shared_size = config.whole("shared_expert_intermediate_size", 2, MAX_INTERMEDIATE)
    experts = experts_from_config(config, normalize=True, shared_size=shared_size, shared_gate=True)
    # There is no MLP without experts, and no field with its size.
    width = {"intermediate_size": experts.expert.intermediate_size}
    sizes = sizes_from_config(config.with_defaults(width), HEAD_DIM)
    layers = layers_from_config(config, sizes, experts)
    return sizes.spec("qwen3_5_moe_text", layers[0], layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    metadata = file.metadata
    shared_size = metadata.whole("expert_shared_feed_forward_length", 2, MAX_INTERMEDIATE)
    experts = experts_from_gguf(file, normalize=True, shared_size=shared_size, shared_gate=True)
    width = {"feed_forward_length": experts.expert.intermediate_size}
    file = replace(file, metadata=metadata.with_defaults(width))
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    layers = layers_from_gguf(file, sizes, experts, in_turn=True)
    return sizes.spec("qwen3_5_moe_text", layers[0], layers=layers)


FAMILY = Family(
    "qwen3_5_moe_text",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES_OF_QWEN3_5.with_names(SHARED_EXPERT),
    gguf_names=GGUF_NAMES_OF_QWEN3_5,
    written=Architecture(
        "qwen35moe",
        {**GGUF_DELTA_NETS, **SECTIONS, **COUNTS, **SIZE, **SHARED_SIZE},
        heads_in_turn=True,
    ),
    models="Qwen3.5-35B-A3B, Qwen3.5-122B-A10B, Qwen3.5-397B-A17B, Qwen3.6-35B-A3B",
    notes="Text only, on CPUs only.",
)
