"""LFM2 with experts whose choice has a bias, except in its first layers."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GATING,
    GGUF_FIELDS,
    LEADING,
    SIZE,
    experts_from_config,
    experts_from_gguf,
    gguf_layers_with_experts,
    mixed_layers,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.lfm2_parts import (
    FOLDER_NAMES_OF_LFM2,
    GGUF_CONVOLUTIONS,
    GGUF_NAMES_OF_LFM2,
    attends_from_config,
    attends_from_gguf,
    block_from_config,
    block_from_gguf,
    convolution_from_config,
    convolution_from_gguf,
    with_convolutions,
    with_usual_names,
)
from sinkstream.checkpoint.families.sizes import sizes_from_config, sizes_from_gguf
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec

_EPS = 1e-6  # added to the sum of the weights
_EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}


def _from_config(config: Fields) -> DecoderSpec:
    config = with_usual_names(config, {"tie_word_embeddings": "tie_embedding"})
    sizes = sizes_from_config(config, tie_embeddings=True)
    block = block_from_config(config, sizes)
    scale = config.number("routed_scaling_factor", 1e-6, 1e6, 1.0)
    experts = experts_from_config(
        config, choice_bias=config.flag("use_expert_bias", True), weight_scale=scale,
        normalize=config.flag("norm_topk_prob", True), normalize_eps=_EPS, score="sigmoid",
    )  # fmt: skip
    first = config.whole("num_dense_layers", 0, sizes.layers - 1, 2)
    blocks = mixed_layers(block, experts, [i >= first for i in range(sizes.layers)])
    attends = attends_from_config(config, sizes.layers)
    layers = with_convolutions(blocks, convolution_from_config(config), attends)
    return sizes.spec("lfm2_moe", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    attends, file = attends_from_gguf(file)
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    block = block_from_gguf(file, sizes)
    experts = experts_from_gguf(
        file, score="sigmoid", choice_bias=True, normalize=True, normalize_eps=_EPS
    )
    blocks = mixed_layers(block, experts, gguf_layers_with_experts(file, sizes.layers))
    layers = with_convolutions(blocks, convolution_from_gguf(file.metadata), attends)
    return sizes.spec("lfm2_moe", block, layers=layers)


FAMILY = Family(
    "lfm2_moe",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES_OF_LFM2.with_names(
        {"router": "feed_forward.gate.weight", "choice_bias": "feed_forward.expert_bias"}
    ).with_modules({f"experts.*.{p}": f"feed_forward.experts.*.{w}" for p, w in _EXPERTS.items()}),
    gguf_names=GGUF_NAMES_OF_LFM2,
    written=Architecture(
        "lfm2moe", {**GGUF_CONVOLUTIONS, **COUNTS, **SIZE, **LEADING, **GATING}, heads_fill=True
    ),
    models="LFM2-8B-A1B, LFM2-24B-A2B",
    notes="On CPUs only.",
)
