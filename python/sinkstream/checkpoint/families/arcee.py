"""Arcee: llama's layers with an MLP of squared ReLU, without a gate."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import (
    biases_from_config,
    biases_from_gguf,
    ungated_block,
)
from sinkstream.checkpoint.families.sizes import (
    activation_from_config,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    no_windows(config)
    sizes = sizes_from_config(config, reads=("hidden_act",))
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    block = ungated_block(
        sizes,
        sizes.attention(rope, **biases_from_config(config)),
        rms_norm_from_config(config),
        activation=activation_from_config(config, "relu2"),
        bias=config.flag("mlp_bias", False),
    )
    return sizes.spec("arcee", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    block = ungated_block(
        sizes,
        sizes.attention(gguf_rope(file, sizes, "interleaved"), **biases_from_gguf(file)),
        rms_norm_from_gguf(file.metadata),
        activation="relu2",
        bias="blk.0.ffn_up.bias" in file.tensors,
    )
    return sizes.spec("arcee", block)


FAMILY = Family(
    "arcee",
    _from_config,
    _from_gguf,
    written=Architecture("arcee", schemes=("llama3",), pairs_adjoin=True),
    models="AFM-4.5B",
)
