"""Command R and Aya: attention and MLP in parallel, with one norm; logits are scaled."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import NO_SCHEME, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    MAX_LENGTH,
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_SCALES = (1e-6, 1e6)
_NO_QK_NORM = "QK norms with separate weights for each head are not supported."


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("use_qk_norm", False, _NO_QK_NORM)
    no_windows(config)
    sizes = sizes_from_config(config, tie_embeddings=True)
    # Command R was trained on longer texts than `max_position_embeddings` says.
    length = config.whole("model_max_length", 1, MAX_LENGTH, sizes.trained_length)
    sizes = replace(sizes, trained_length=length)
    rope = rope_from_config(config, sizes.head_dim, length, pairing="interleaved", base=5e5)
    attention = sizes.attention(rope, **biases_from_config(config))
    norm = layer_norm_from_config(config, "layer_norm_eps", bias=False)
    block = Block(attention, sizes.dense(), norm, mlp_norm=False, parallel=True)
    return sizes.spec("cohere", block, logit_scale=config.number("logit_scale", *_SCALES, 0.0625))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, reads=("logit_scale",))
    attention = sizes.attention(gguf_rope(file, sizes, "interleaved"), **biases_from_gguf(file))
    norm = layer_norm_from_gguf(file.metadata, bias=False)
    block = Block(attention, sizes.dense(), norm, mlp_norm=False, parallel=True)
    scale = file.metadata.number("logit_scale", *_SCALES, 1.0)
    return sizes.spec("cohere", block, logit_scale=scale)


FAMILY = Family(
    "cohere",
    _from_config,
    _from_gguf,
    written=Architecture(
        "command-r",
        {**NO_SCHEME, "logit_scale": lambda spec: spec.logit_scale},
        ignores=("output",),
        heads_fill=True,
    ),
    models="Command R, Aya 23, Aya Expanse",
    notes="No QK norm with separate weights for each head (`use_qk_norm`), which Command R+ has.",
)
