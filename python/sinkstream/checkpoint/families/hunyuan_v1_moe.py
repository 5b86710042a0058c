"""Hunyuan with experts: one for every token in addition to the chosen ones."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    PARTS,
    SHARED_COUNT,
    SHARED_SIZE,
    SIZE,
    experts_from_config,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.hunyuan_v1_dense import (
    NAMES,
    block_from_config,
    block_from_gguf,
)
from sinkstream.checkpoint.families.sizes import MAX_INTERMEDIATE
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes, block = block_from_config(config)
    config.per_layer("num_shared_expert", sizes.layers, 1, 1, 1)
    experts = experts_from_config(
        config.with_defaults({"moe_intermediate_size": sizes.intermediate_size}),
        chosen="moe_topk",
        normalize=True,
        shared_size=sizes.intermediate_size,
    )
    return sizes.spec("hunyuan_v1_moe", replace(block, feed_forward=experts))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes, block = block_from_gguf(file, *GGUF_FIELDS)
    shared = file.metadata.whole(
        "expert_shared_feed_forward_length", 1, MAX_INTERMEDIATE, sizes.intermediate_size
    )
    experts = experts_from_gguf(file, sizes.intermediate_size, normalize=True, shared_size=shared)
    return sizes.spec("hunyuan_v1_moe", replace(block, feed_forward=experts))


FAMILY = Family(
    "hunyuan_v1_moe",
    _from_config,
    _from_gguf,
    NAMES.with_names({"router": "mlp.gate.wg.weight"}).with_modules(
        {f"shared.{part}": f"mlp.shared_mlp.{part}_proj" for part in PARTS}
    ),
    written=Architecture(
        "hunyuan-moe", {**COUNTS, **SIZE, **SHARED_COUNT, **SHARED_SIZE}, schemes=("dynamic",)
    ),
    models="Hunyuan-A13B",
)
