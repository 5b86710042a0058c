"""Gemma and CodeGemma: llama's layers with scaled embeddings and GELU; heads are 256 wide."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.gemma_parts import gemma_sizes, gemma_spec
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_NAMES_OF_GELU = ("gelu", "gelu_pytorch_tanh")  # older configs say gelu and mean the other


def _from_config(config: Fields) -> DecoderSpec:
    no_windows(config)
    sizes = gemma_sizes(config)
    if config.word("hidden_act", "gelu") not in _NAMES_OF_GELU:
        raise config.error("hidden_act", f"be one of {', '.join(_NAMES_OF_GELU)}")
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    attention = sizes.attention(rope, **biases_from_config(config))
    block = Block(attention, sizes.dense(activation="gelu_tanh"), rms_norm_from_config(config))
    return gemma_spec("gemma", sizes, block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(gguf_rope(file, sizes, "half"), **biases_from_gguf(file))
    block = Block(attention, sizes.dense(activation="gelu_tanh"), rms_norm_from_gguf(file.metadata))
    return gemma_spec("gemma", sizes, block)


FAMILY = Family(
    "gemma",
    _from_config,
    _from_gguf,
    # Norms multiply by 1 + weight; GGUF files hold the sum.
    FOLDER_NAMES.with_added(1.0, ("attention_norm", "mlp_norm", "final_norm")),
    written=Architecture("gemma", ignores=("output",)),
    models="Gemma 2B, Gemma 7B, CodeGemma",
)
