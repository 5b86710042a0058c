"""Granite 4: Mamba-2 in most layers, Granite's scales, and experts in some of the models."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import COUNTS, GGUF_FIELDS, SHARED_SIZE
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.granite_parts import (
    GGUF_SCALES,
    SHARED_FUSED,
    SHARED_NAMES,
    granite_experts,
    granite_experts_from_gguf,
    spec_from_config,
    spec_from_gguf,
)
from sinkstream.checkpoint.families.lfm2_parts import GGUF_KV_HEADS, attends_from_gguf
from sinkstream.checkpoint.families.mamba_parts import (
    ALL_PARTS,
    GGUF_MAMBA,
    GGUF_NAMES_OF_MAMBA,
    folder_names,
    mamba_from_config,
    mamba_from_gguf,
    with_mamba,
)
from sinkstream.checkpoint.families.sizes import MAX_INTERMEDIATE, Sizes
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import NO_ROPE, DecoderSpec, Dense, Experts

_KINDS = ("attention", "full_attention", "linear_attention", "mamba")
_EXPERTS = "block_sparse_moe."


def _feed_forward(config: Fields, sizes: Sizes) -> Dense | Experts:
    if config.whole("num_local_experts", 0, 1024, 0) > 0:
        return granite_experts(config)
    size = config.whole("shared_intermediate_size", 2, MAX_INTERMEDIATE)
    return replace(sizes.dense(), intermediate_size=size)


def _from_config(config: Fields) -> DecoderSpec:
    spec = spec_from_config("granitemoehybrid", config, lambda sizes: _feed_forward(config, sizes))
    (block,) = spec.blocks
    if config.word("position_embedding_type", "nope") != "rope":
        block = replace(block, mixer=replace(block.attention, rope=NO_ROPE))
    name = "layers_block_type" if config.has("layers_block_type") else "layer_types"
    kinds = config.words(name, spec.layers, _KINDS) or ["mamba"] * spec.layers
    attends = ["attention" in kind and kind != "linear_attention" for kind in kinds]
    if not any(attends):
        raise config.error(name, "have attention in at least one layer")
    return spec.with_layers(with_mamba(block, mamba_from_config(config), attends))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    attends, file = attends_from_gguf(file)

    def feed_forward(sizes: Sizes) -> Dense | Experts:
        if file.metadata.whole("expert_count", 0, 1024, 0) > 0:
            return granite_experts_from_gguf(file, sizes)
        return sizes.dense()

    spec = spec_from_gguf("granitemoehybrid", file, feed_forward, GGUF_FIELDS)
    (block,) = spec.blocks
    has_bias = any(name.endswith(".ssm_conv1d.bias") for name in file.tensors)
    mamba = mamba_from_gguf(file.metadata, conv_bias=has_bias)
    return spec.with_layers(with_mamba(block, mamba, attends))


_IN_FOLDER = FOLDER_NAMES.with_names(folder_names("mamba")).with_logarithms("rate")
_PROJECTION = {"mamba.in_proj.weight": ALL_PARTS}

FAMILY = Family(
    "granitemoehybrid",
    _from_config,
    _from_gguf,
    folder_names=replace(
        _IN_FOLDER.with_names(
            {"router": f"{_EXPERTS}router.layer.weight", **SHARED_NAMES}
        ).with_fused(
            {
                f"{_EXPERTS}input_linear.weight": Fused(("experts.*.gate", "experts.*.up")),
                f"{_EXPERTS}output_linear.weight": Fused(("experts.*.down",)),
                **SHARED_FUSED,
                **_PROJECTION,
            }
        ),
        without_experts=_IN_FOLDER.with_names(
            {"down": "shared_mlp.output_linear.weight"}
        ).with_fused({"shared_mlp.input_linear.weight": Fused(("gate", "up")), **_PROJECTION}),
    ),
    gguf_names=GGUF_NAMES.with_names(GGUF_NAMES_OF_MAMBA).with_fused({"ssm_in.weight": ALL_PARTS}),
    written=Architecture(
        "granitehybrid",
        {
            **GGUF_SCALES,
            **GGUF_MAMBA,
            **GGUF_KV_HEADS,
            **COUNTS,
            **SHARED_SIZE,
            "rope.scaling.finetuned": lambda spec: bool(spec.attentions[0].rope.rotary_dim),
        },
        pairs_adjoin=True,
    ),
    models="Granite 4.0-H",
    notes="On CPUs only.",
)
