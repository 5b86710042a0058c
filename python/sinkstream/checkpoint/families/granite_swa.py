"""Granite with windows: a learned sink in every head, and each layer's own base of RoPE or none."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import ALL_BIASES, Architecture
from sinkstream.checkpoint.families.experts import GGUF_FIELDS, MAX_EXPERTS
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.granite_parts import (
    GGUF_SCALES,
    GGUF_SWA,
    granite_experts_from_gguf,
    spec_from_config,
    spec_from_gguf,
    swa_layers_from_config,
    swa_layers_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import GGUF_NAMES, Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    has_bias = config.flag("mlp_bias", False)
    spec = spec_from_config(
        "granite_swa", config, lambda sizes: sizes.dense(bias=has_bias), tie_embeddings=True
    )
    return swa_layers_from_config(spec, config)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    reads = ("attention.sliding_window", *GGUF_FIELDS)
    if file.metadata.whole(
        "expert_count", 0, MAX_EXPERTS, 0
    ):  # the converter has one name for both
        spec = spec_from_gguf(
            "granitemoe_swa", file, lambda sizes: granite_experts_from_gguf(file, sizes), reads
        )
    else:
        has_bias = "blk.0.ffn_gate.bias" in file.tensors
        spec = spec_from_gguf("granite_swa", file, lambda sizes: sizes.dense(bias=has_bias), reads)
    return swa_layers_from_gguf(spec, file)


FAMILY = Family(
    "granite_swa",
    _from_config,
    _from_gguf,
    gguf_names=GGUF_NAMES.with_fused(
        {
            "ffn_gate_up_exps.weight": Fused(("experts.*.gate", "experts.*.up")),
            "ffn_up_shexp.weight": Fused(("shared.gate", "shared.up")),
        }
    ),
    written=Architecture(
        "granite_swa",
        {**GGUF_SCALES, **GGUF_SWA},
        schemes=("llama3",),
        biases=ALL_BIASES,
        pairs_adjoin=True,
    ),
    models="Granite 4.5",
)
