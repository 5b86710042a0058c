"""What Granite's families share: embeddings, scores, residuals and logits are scaled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sinkstream.checkpoint.families.architecture import (
    WINDOW,
    WINDOW_PATTERN,
    Value,
    attention_of,
)
from sinkstream.checkpoint.families.experts import experts_from_config, experts_from_gguf
from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    MAX_INTERMEDIATE,
    Sizes,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import Fused
from sinkstream.checkpoint.families.windows import gguf_window, listed_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import BASES, default_frequencies, rope_from_config
from sinkstream.checkpoint.spec import (
    NO_ROPE,
    Block,
    DecoderSpec,
    Dense,
    Experts,
    RopeSpec,
    usual_scale,
)

_SCALES = (1e-6, 1e6)
SHARED_NAMES = {"shared.down": "shared_mlp.output_linear.weight"}
SHARED_FUSED = {"shared_mlp.input_linear.weight": Fused(("shared.gate", "shared.up"))}
"""Where folders have the expert that every token goes through."""
GGUF_SCALES: dict[str, Value] = {
    "attention.scale": lambda spec: attention_of(spec).scale,
    "embedding_scale": lambda spec: spec.embedding_scale,
    "logit_scale": lambda spec: 1 / spec.logit_scale,
    "residual_scale": lambda spec: spec.blocks[0].residual_scale,
}


def _rotates(spec: DecoderSpec) -> list[bool] | None:
    """Return which layers rotate, unless all do."""
    found = [spec.blocks[kind].attention.rope.rotary_dim > 0 for kind in spec.block_of_layer]
    return None if all(found) else found


GGUF_SWA: dict[str, Value] = {
    **WINDOW,
    **WINDOW_PATTERN,
    "attention.rope_pattern": _rotates,
}


def swa_layers_from_config(spec: DecoderSpec, config: Fields) -> DecoderSpec:
    """Return the decoder with a learned sink in every head, and windows and bases of layers."""
    windows = listed_windows(config, [i % 4 != 0 for i in range(spec.layers)], 128)
    return _with_sinks(spec, windows, _ropes_from_config(config, spec))


def _ropes_from_config(config: Fields, spec: DecoderSpec) -> list[RopeSpec]:
    """Return how each layer rotates: with a base of its own, or not at all."""
    name, (rope,) = "layer_rope_theta", spec.ropes
    if not config.has(name):
        return [rope] * spec.layers
    scaling = config.group("rope_scaling") or config.group("rope_parameters")
    if scaling is not None:
        scaling.must_be("rope_type", "default", f"`{name}` gives the bases of layers.")
    bases = config.numbers(name, spec.layers, 0, BASES[1])
    if any(0 < base < BASES[0] for base in bases):
        raise config.error(name, f"contain only 0 and numbers from {BASES[0]}", bases)
    return [
        RopeSpec(tuple(default_frequencies(base, rope.rotary_dim)), "half") if base else NO_ROPE
        for base in bases
    ]


def swa_layers_from_gguf(spec: DecoderSpec, file: GgufDescription) -> DecoderSpec:
    """Return the decoder with a learned sink in every head, and windows of layers."""
    windows = gguf_window(file.metadata, spec.layers)
    rotates = file.metadata.flags("attention.rope_pattern", spec.layers) or [True] * spec.layers
    (rope,) = spec.ropes
    return _with_sinks(spec, windows, [rope if each else NO_ROPE for each in rotates])


def _with_sinks(
    spec: DecoderSpec, windows: Sequence[int], ropes: Sequence[RopeSpec]
) -> DecoderSpec:
    (block,) = spec.blocks
    attention = replace(block.attention, sink_logits=True)
    return spec.with_layers(
        replace(block, mixer=replace(attention, window=window, rope=rope))
        for window, rope in zip(windows or (0,) * spec.layers, ropes, strict=True)
    )


def granite_experts(config: Fields) -> Experts:
    """Read the experts of a config.json, and the one that every token goes through, if any."""
    shared_size = config.whole("shared_intermediate_size", 0, MAX_INTERMEDIATE, 0)
    return experts_from_config(
        config, "intermediate_size", score="softmax_of_chosen", shared_size=shared_size
    )


def granite_experts_from_gguf(file: GgufDescription, sizes: Sizes) -> Experts:
    """Read the experts of GGUF metadata, and the one that every token goes through, if any."""
    name = "expert_shared_feed_forward_length"
    shared_size = file.metadata.whole(name, 0, MAX_INTERMEDIATE, 0)
    size = sizes.intermediate_size
    return experts_from_gguf(file, size, score="softmax_of_chosen", shared_size=shared_size)


def spec_from_config(
    family: str,
    config: Fields,
    feed_forward_of: Callable[[Sizes], Dense | Experts],
    *,
    tie_embeddings: bool = False,
) -> DecoderSpec:
    """Return a decoder with Granite's scales; `tie_embeddings`: default for an absent field."""
    sizes = sizes_from_config(config, tie_embeddings=tie_embeddings)
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
