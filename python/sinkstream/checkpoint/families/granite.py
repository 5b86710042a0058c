"""Granite without experts: llama's layers; embeddings, scores, residuals and logits are scaled."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import ALL_BIASES, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.granite_parts import (
    GGUF_SCALES,
    spec_from_config,
    spec_from_gguf,
)
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("num_local_experts", 0, "This family has no experts.")
    no_windows(config)
    has_bias = config.flag("mlp_bias", False)
    return spec_from_config("granite", config, lambda sizes: sizes.dense(bias=has_bias))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    has_bias = "blk.0.ffn_gate.bias" in file.tensors
    return spec_from_gguf("granite", file, lambda sizes: sizes.dense(bias=has_bias))


FAMILY = Family(
    "granite",
    _from_config,
    _from_gguf,
    written=Architecture(
        "granite", GGUF_SCALES, schemes=("llama3",), biases=ALL_BIASES, pairs_adjoin=True
    ),
    models="Granite 3",
    notes="No hybrids (`-h`). Other Granite 4 models load as GGUF files only.",
)
