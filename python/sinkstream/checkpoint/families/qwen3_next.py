"""Qwen3-Next: gated delta nets in most layers, experts, and a gated one for every token."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.delta_parts import (
    FOLDER_NAMES_OF_DELTA_NETS,
    GGUF_DELTA_NETS,
    GGUF_NAMES_OF_DELTA_NETS,
    HEAD_DIM,
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
    layers_with_experts,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    MAX_INTERMEDIATE,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, HEAD_DIM)
    normalize = config.flag("norm_topk_prob", True)
    shared = config.whole("shared_expert_intermediate_size", 2, MAX_INTERMEDIATE)
    experts = experts_from_config(config, normalize=normalize, shared_size=shared, shared_gate=True)
    mixers = layers_from_config(config, sizes, sizes.dense())
    pairs = zip(mixers, layers_with_experts(config), strict=True)
    layers = [replace(layer, feed_forward=experts) if has else layer for layer, has in pairs]
    return sizes.spec("qwen3_next", layers[0], layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    width = sizes.intermediate_size
    shared = file.metadata.whole("expert_shared_feed_forward_length", 2, MAX_INTERMEDIATE, width)
    experts = experts_from_gguf(
        file, chosen_size=width, normalize=True, shared_size=shared, shared_gate=True
    )
    layers = layers_from_gguf(file, sizes, experts, in_turn=False)
    return sizes.spec("qwen3_next", layers[0], layers=layers)


_ALL_WITH_GATE = Fused(("conv_q", "conv_k", "conv_v", "state_gate"), "state_key_head")
_STRENGTH_AND_STEP = Fused(("strength", "step"), "state_key_head")
_GGUF_NAMES = GGUF_NAMES_OF_DELTA_NETS.with_fused({"ssm_ba.weight": _STRENGTH_AND_STEP})

FAMILY = Family(
    "qwen3_next",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES_OF_DELTA_NETS.with_names(SHARED_EXPERT).with_fused(
        {
            "linear_attn.in_proj_qkvz.weight": _ALL_WITH_GATE,
            "linear_attn.in_proj_ba.weight": _STRENGTH_AND_STEP,
        }
    ),
    # "ssm_in": the oldest files have one tensor, as folders do.
    gguf_names=replace(_GGUF_NAMES, fused={**_GGUF_NAMES.fused, "ssm_in.weight": _ALL_WITH_GATE}),
    written=Architecture("qwen3next", {**GGUF_DELTA_NETS, **COUNTS, **SIZE, **SHARED_SIZE}),
    models="Qwen3-Next, Qwen3-Coder-Next",
    notes="On CPUs only.",
)
