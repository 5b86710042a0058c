"""Qwen3.5: gated delta nets in most layers; attention with a gate on its output in the others."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.delta_parts import (
    CONVOLVED,
    FOLDER_NAMES_OF_DELTA_NETS,
    GGUF_DELTA_NETS,
    GGUF_NAMES_OF_DELTA_NETS,
    attends_from_config,
    attends_from_gguf,
    delta_net_from_config,
    delta_net_from_gguf,
    with_delta_nets,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
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

_HEAD_DIM, _PARTIAL = 256, 0.25
_SECTIONS = [11, 11, 10, 0]  # of the positions of images, which are the same in a text


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("attention_bias", False)
    config.must_be("attn_output_gate", True)
    sizes = sizes_from_config(config, _HEAD_DIM)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, partial=_PARTIAL)
    attention = sizes.attention(rope, qk_norm="head", output_gate=True)
    block = Block(attention, sizes.dense(), rms_norm_from_config(config))
    attends = attends_from_config(config, sizes.layers)
    layers = with_delta_nets(block, delta_net_from_config(config), attends)
    return sizes.spec("qwen3_5_text", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(gguf_rope(file, sizes, "half"), qk_norm="head", output_gate=True)
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    delta_net = delta_net_from_gguf(file.metadata, in_turn=True)
    layers = with_delta_nets(block, delta_net, attends_from_gguf(file.metadata, sizes.layers))
    return sizes.spec("qwen3_5_text", block, layers=layers)


FAMILY = Family(
    "qwen3_5_text",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES_OF_DELTA_NETS.with_names(
        {
            "state_gate": "linear_attn.in_proj_z.weight",
            "step": "linear_attn.in_proj_a.weight",
            "strength": "linear_attn.in_proj_b.weight",
        }
    ).with_fused({"linear_attn.in_proj_qkv.weight": CONVOLVED}),
    gguf_names=GGUF_NAMES_OF_DELTA_NETS.with_names(
        {"step": "ssm_alpha.weight", "strength": "ssm_beta.weight"}
    ),
    written=Architecture(
        "qwen35",
        {**GGUF_DELTA_NETS, "rope.dimension_sections": lambda spec: _SECTIONS},
        heads_in_turn=True,
    ),
    models="Qwen3.5, Qwen3.6",
    notes="The dense sizes, text only, on CPUs only.",
)
