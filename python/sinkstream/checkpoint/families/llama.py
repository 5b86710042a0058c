"""Llama, and models with its architecture: SmolLM2, TinyLlama, Llama 3."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import ALL_BIASES, Architecture
from sinkstream.checkpoint.families.experts import (
    GGUF_FIELDS,
    MAX_EXPERTS,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    Sizes,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("rope_interleaved", False)
    no_windows(config)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    block = Block(
        sizes.attention(rope, **biases_from_config(config)),
        sizes.dense(bias=config.flag("mlp_bias", False)),
        rms_norm_from_config(config),
    )
    return sizes.spec("llama", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    if file.metadata.whole("expert_count", 0, MAX_EXPERTS, 0) > 0:
        return _mixtral(file, sizes)
    # The converter permutes the rows of q and k for llama and a few others, so that pairs adjoin.
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "interleaved"), **biases_from_gguf(file)),
        sizes.dense(bias="blk.0.ffn_gate.bias" in file.tensors),
        rms_norm_from_gguf(file.metadata),
    )
    return sizes.spec("llama", block)


def _mixtral(file: GgufDescription, sizes: Sizes) -> DecoderSpec:
    """Return what the converter also calls "llama"."""
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "interleaved"), **biases_from_gguf(file)),
        experts_from_gguf(file, sizes.intermediate_size, normalize=True),
        rms_norm_from_gguf(file.metadata),
    )
    return sizes.spec("mixtral", block)


FAMILY = Family(
    "llama",
    _from_config,
    _from_gguf,
    written=Architecture("llama", schemes=("llama3",), pairs_adjoin=True, biases=ALL_BIASES),
    models="Llama 2, Llama 3, SmolLM2, TinyLlama",
    notes="Biases and the RoPE scaling of Llama 3 are included.",
)
