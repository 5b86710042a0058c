"""MiniMax-M2: experts whose choice has a bias; norms over all heads; half of each is rotated."""

from __future__ import annotations

from typing import Any

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GATING,
    GGUF_FIELDS,
    SIZE,
    experts_from_config,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.mixtral import EXPERT_NAMES
from sinkstream.checkpoint.families.sizes import (
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

_RULES: dict[str, Any] = {"score": "sigmoid", "choice_bias": True, "normalize": True}


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("scoring_func", "sigmoid")
    config.must_be("use_routing_bias", True)
    config.must_be("shared_intermediate_size", 0)
    sizes = sizes_from_config(config, 128)
    rotated = config.whole("rotary_dim", 2, sizes.head_dim, sizes.head_dim)
    rope = rope_from_config(
        config, sizes.head_dim, sizes.trained_length, partial=rotated / sizes.head_dim, base=5e6
    )
    experts = experts_from_config(config, "intermediate_size", **_RULES)
    attention = sizes.attention(rope, qk_norm="full")
    return sizes.spec("minimax_m2", Block(attention, experts, rms_norm_from_config(config)))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    attention = sizes.attention(gguf_rope(file, sizes, "half"), qk_norm="full")
    experts = experts_from_gguf(file, sizes.intermediate_size, **_RULES)
    return sizes.spec("minimax_m2", Block(attention, experts, rms_norm_from_gguf(file.metadata)))


FAMILY = Family(
    "minimax_m2",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES.with_names(
        {**EXPERT_NAMES, "choice_bias": "block_sparse_moe.e_score_correction_bias"}
    ),
    written=Architecture("minimax-m2", {**COUNTS, **SIZE, **GATING}),
    models="MiniMax-M2",
)
