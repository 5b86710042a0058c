"""OLMoE: experts without normalized weights; norms over all heads of queries and keys."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    experts_from_config,
    experts_from_gguf,
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


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    config.must_be("clip_qkv", None)  # it would clip after the norms
    attention = sizes.attention(rope, qk_norm="full", **biases_from_config(config))
    normalize = config.flag("norm_topk_prob", False)
    experts = experts_from_config(config, "intermediate_size", normalize=normalize)
    return sizes.spec("olmoe", Block(attention, experts, rms_norm_from_config(config)))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    attention = sizes.attention(
        gguf_rope(file, sizes, "half"),
        qk_norm="full",
        **biases_from_gguf(file),
    )
    experts = experts_from_gguf(file, sizes.intermediate_size)
    return sizes.spec("olmoe", Block(attention, experts, rms_norm_from_gguf(file.metadata)))


FAMILY = Family(
    "olmoe",
    _from_config,
    _from_gguf,
    written=Architecture("olmoe", COUNTS, heads_fill=True),
    models="OLMoE",
)
