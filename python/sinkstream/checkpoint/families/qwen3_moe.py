"""Qwen3 with experts: of each layer's many experts, a few read each token."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    SIZE,
    experts_from_config,
    experts_from_gguf,
    gguf_layers_with_experts,
    layers_with_experts,
    mixed_layers,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_TEXT_OF_VL = "qwen3_vl_moe_text"


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("use_sliding_window", False)
    is_text_of_vl = config.value("model_type") == _TEXT_OF_VL
    if is_text_of_vl:  # whose router has no such field
        config.must_be("norm_topk_prob", True)
    sizes = sizes_from_config(config)
    base = 500_000.0 if is_text_of_vl else 10_000.0
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=base)
    block = Block(
        sizes.attention(rope, qk_norm="head", **biases_from_config(config)),
        sizes.dense(),
        rms_norm_from_config(config),
    )
    experts = experts_from_config(config, normalize=config.flag("norm_topk_prob", is_text_of_vl))
    layers = mixed_layers(block, experts, layers_with_experts(config))
    return sizes.spec("qwen3_moe", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    attention = sizes.attention(
        gguf_rope(file, sizes, "half"), qk_norm="head", **biases_from_gguf(file)
    )
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    experts = experts_from_gguf(file, chosen_size=sizes.intermediate_size, normalize=True)
    layers = mixed_layers(block, experts, gguf_layers_with_experts(file, sizes.layers))
    return sizes.spec("qwen3_moe", block, layers=layers)


FAMILY = Family(
    "qwen3_moe",
    _from_config,
    _from_gguf,
    written=Architecture("qwen3moe", {**COUNTS, **SIZE}),
    # The text of Qwen3-VL: without images, its three positions of a token are one.
    architectures=("qwen3moe", "qwen3vlmoe"),
    models="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder, Qwen3-VL-30B-A3B, Qwen3-VL-235B-A22B",
    text_of=(_TEXT_OF_VL,),
    notes="Of Qwen3-VL, the text.",
)
