"""Qwen1.5 and Qwen2 with experts, and a gated one that every token goes through."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    SHARED_SIZE,
    SIZE,
    experts_from_config,
    experts_from_gguf,
    gguf_layers_with_experts,
    layers_with_experts,
    mixed_layers,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    MAX_INTERMEDIATE,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("use_sliding_window", False)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    attention = sizes.attention(rope, qkv_bias=config.flag("qkv_bias", True))
    block = Block(attention, sizes.dense(), rms_norm_from_config(config))
    experts = experts_from_config(
        config,
        normalize=config.flag("norm_topk_prob", False),
        shared_size=config.whole("shared_expert_intermediate_size", 2, MAX_INTERMEDIATE),
        shared_gate=True,
    )
    layers = mixed_layers(block, experts, layers_with_experts(config))
    return sizes.spec("qwen2_moe", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    attention = sizes.attention(
        gguf_rope(file, sizes, "half"), qkv_bias="blk.0.attn_q.bias" in file.tensors
    )
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    width = sizes.intermediate_size
    shared_size = file.metadata.whole(
        "expert_shared_feed_forward_length", 2, MAX_INTERMEDIATE, width
    )
    experts = experts_from_gguf(file, chosen_size=width, shared_size=shared_size, shared_gate=True)
    layers = mixed_layers(block, experts, gguf_layers_with_experts(file, sizes.layers))
    return sizes.spec("qwen2_moe", block, layers=layers)


FAMILY = Family(
    "qwen2_moe",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES.with_names(
        {
            "shared.gate": "mlp.shared_expert.gate_proj.weight",
            "shared.up": "mlp.shared_expert.up_proj.weight",
            "shared.down": "mlp.shared_expert.down_proj.weight",
            "shared_gate": "mlp.shared_expert_gate.weight",
        }
    ),
    written=Architecture("qwen2moe", {**COUNTS, **SIZE, **SHARED_SIZE}, heads_fill=True),
    models="Qwen1.5-MoE, Qwen2-57B-A14B",
)
