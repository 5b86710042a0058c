"""ERNIE 4.5 with experts: a bias chooses, some read every token; the first layers have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.ernie4_5 import dense_from_config, dense_from_gguf
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    LEADING,
    PARTS,
    SHARED_COUNT,
    SHARED_SIZE,
    SIZE,
    STEP,
    experts_from_config,
    experts_from_gguf,
    gguf_layers_with_experts,
    mixed_layers,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import MAX_INTERMEDIATE, MAX_LAYERS
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec, Experts

_RULES: dict[str, Any] = {"choice_bias": True, "normalize": True}


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("use_bias", False)
    # transformers divides by at least this; a sum of probabilities is hardly ever less.
    config.number("moe_norm_min", 0, 1e-6, 1e-12)
    dense = dense_from_config(config, None)
    experts = experts_from_config(
        config.with_defaults({"moe_num_shared_experts": 2}), count="moe_num_experts",
        chosen="moe_k", shared="moe_num_shared_experts", **_RULES,
    )  # fmt: skip
    first = config.whole("moe_layer_start_index", 0, dense.layers - 1, 1)
    last = config.whole("moe_layer_end_index", -1, MAX_LAYERS, -1) % MAX_LAYERS
    step = config.whole("moe_layer_interval", 1, dense.layers, 1)
    has_experts = [first <= i <= last and (i + 1) % step == 0 for i in range(dense.layers)]
    return _with_experts(dense, experts, has_experts)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    dense = dense_from_gguf(file, GGUF_FIELDS)
    size = file.metadata.whole("expert_shared_feed_forward_length", 0, MAX_INTERMEDIATE, 0)
    experts = experts_from_gguf(file, shared_size=size, **_RULES)
    return _with_experts(dense, experts, gguf_layers_with_experts(file, dense.layers))


def _with_experts(dense: DecoderSpec, experts: Experts, has: Sequence[bool]) -> DecoderSpec:
    layers = mixed_layers(dense.blocks[0], experts, has)
    return replace(dense.with_layers(layers), family="ernie4_5_moe")


FAMILY = Family(
    "ernie4_5_moe",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES.with_names(
        {"choice_bias": "mlp.moe_statics.e_score_correction_bias"}
    ).with_modules({f"shared.{part}": f"mlp.shared_experts.{part}_proj" for part in PARTS}),
    written=Architecture(
        "ernie4_5-moe",
        {**COUNTS, **SIZE, **SHARED_COUNT, **SHARED_SIZE, **LEADING, **STEP},
    ),
    models="ERNIE-4.5-21B-A3B",
)
