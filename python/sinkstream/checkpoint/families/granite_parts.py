"""What Granite's families share: embeddings, scores, residuals and logits are scaled."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sinkstream.checkpoint.families.architecture import Value, attention_of
from sinkstream.checkpoint.families.family import GgufDescription
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
from sinkstream.checkpoint.spec import NO_ROPE, Block, DecoderSpec, Dense, Experts, usual_scale

_SCALES = (1e-6, 1e6)
GGUF_SCALES: dict[str, Value] = {
    "attention.scale": lambda spec: attention_of(spec).scale,
    "embedding_scale": lambda spec: spec.embedding_scale,
    "logit_scale": lambda spec: 1 / spec.logit_scale,
    "residual_scale": lambda spec: spec.blocks[0].residual_scale,
}


def spec_from_config(
    family: str, config: Fields, feed_forward_of: Callable[[Sizes], Dense | Experts]
) -> DecoderSpec:
    """Return a decoder with Granite's scales."""
    no_windows(config)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    scale = config.number("attention_multiplier", *_SCALES, 1.0)
    residual_scale = config.number("residual_multiplier", *_SCALES, 1.0)
    attention = sizes.attention(rope, scale=scale, **biases_from_config(config))
    norm = rms_norm_from_config(config)
    return sizes.spec(
        family,
        Block(attention, feed_forward_of(sizes), norm, residual_scale=residual_scale),
        embedding_scale=config.number("embedding_multiplier", *_SCALES, 1.0),
        logit_scale=1 / config.number("logits_scaling", *_SCALES, 1.0),
    )


def spec_from_gguf(
    family: str,
    file: GgufDescription,
    feed_forward_of: Callable[[Sizes], Dense | Experts],
    reads: Collection[str] = (),
) -> DecoderSpec:
    """Return a decoder with Granite's scales; `reads`: other fields that its family reads."""
    metadata, sizes = file.metadata, sizes_from_gguf(file, (*GGUF_SCALES, *reads))
    # Granite 4 uses the field for whether it rotates.
    rotates = metadata.flag("rope.scaling.finetuned", True)
    rope = gguf_rope(file, sizes, "interleaved") if rotates else NO_ROPE
    scale = metadata.number("attention.scale", *_SCALES, usual_scale(sizes.head_dim))
    residual_scale = metadata.number("residual_scale", *_SCALES, 1.0)
    attention = sizes.attention(rope, scale=scale, **biases_from_gguf(file))
    norm = rms_norm_from_gguf(metadata)
    return sizes.spec(
        family,
        Block(attention, feed_forward_of(sizes), norm, residual_scale=residual_scale),
        embedding_scale=metadata.number("embedding_scale", *_SCALES, 1.0),
        logit_scale=1 / metadata.number("logit_scale", *_SCALES, 1.0),
    )
