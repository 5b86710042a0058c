"""Command R7B and A: attention and MLP in parallel; layers without windows do not rotate."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import NO_SCHEME, WINDOW, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config
from sinkstream.checkpoint.families.sizes import (
    Sizes,
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import gguf_window, periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import NO_ROPE, Block, DecoderSpec, Norm, RopeSpec

_PERIOD, _WINDOW = 4, 4096
_LOGIT_SCALES = (1e-6, 1e6)


def _block(sizes: Sizes, rope: RopeSpec, norm: Norm, biases: dict[str, bool]) -> Block:
    attention = sizes.attention(rope, **biases)
    return Block(attention, sizes.dense(), norm, mlp_norm=False, parallel=True)


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("use_qk_norm", False)
    config.must_be("use_parallel_block", True)
    config.must_be("use_gated_activation", True)
    config.must_be("rotary_pct", 1)
    sizes = sizes_from_config(config, tie_embeddings=True)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, pairing="interleaved")
    norm = layer_norm_from_config(config, "layer_norm_eps", bias=False)
    return sizes.spec(
        "cohere2",
        _block(sizes, rope, norm, biases_from_config(config)),
        periodic_windows(config, _PERIOD, _WINDOW),
        full_rope=NO_ROPE,
        logit_scale=config.number("logit_scale", *_LOGIT_SCALES, 0.0625),
    )


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, reads=("attention.sliding_window", "logit_scale"))
    norm = layer_norm_from_gguf(file.metadata, bias=False)
    return sizes.spec(
        "cohere2",
        _block(sizes, gguf_rope(file, sizes, "interleaved"), norm, {}),
        gguf_window(file.metadata, sizes.layers, _PERIOD, _WINDOW),
        full_rope=NO_ROPE,
        logit_scale=file.metadata.number("logit_scale", *_LOGIT_SCALES),
    )


FAMILY = Family(
    "cohere2",
    _from_config,
    _from_gguf,
    written=Architecture(
        "cohere2",
        {**WINDOW, **NO_SCHEME, "logit_scale": lambda spec: spec.logit_scale},
        ignores=("output",),
        heads_fill=True,
    ),
    models="Command R7B, Command A",
)
