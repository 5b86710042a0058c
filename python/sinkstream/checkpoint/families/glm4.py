"""GLM-4: norms on both sides of attention and MLP; half of each head is rotated."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import SANDWICH
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_HEAD_DIM, _ROTATED = 128, 0.5
_GATE_UP = Fused(("gate", "up"))


def _from_config(config: Fields) -> DecoderSpec:
    no_windows(config)
    sizes = sizes_from_config(config, _HEAD_DIM)
    rope = rope_from_config(
        config, sizes.head_dim, sizes.trained_length, pairing="interleaved", partial=_ROTATED
    )
    attention = sizes.attention(rope, qkv_bias=config.flag("attention_bias", True))
    block = Block(attention, sizes.dense(), rms_norm_from_config(config), **SANDWICH)
    return sizes.spec("glm4", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    reason = "In files that have this field, the rows of queries and keys are in a different order."
    file.metadata.must_be("rope.dimension_sections", None, reason)
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(
        gguf_rope(file, sizes, "interleaved"), qkv_bias="blk.0.attn_q.bias" in file.tensors
    )
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata), **SANDWICH)
    return sizes.spec("glm4", block)


FAMILY = Family(
    "glm4",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_names(
        {
            "attention_post_norm": "post_self_attn_layernorm.weight",
            "mlp_post_norm": "post_mlp_layernorm.weight",
        }
    ).with_fused({"mlp.gate_up_proj.weight": _GATE_UP}),
    GGUF_NAMES.with_fused({"ffn_up.weight": _GATE_UP}),
    written=Architecture("glm4"),
    models="GLM-4-9B-0414, GLM-4-32B-0414",
)
