"""Seeded random decoders: any combination of features that the decoder allows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import sinkstream
from sinkstream import _core
from sinkstream.checkpoint.checkpoint import Checkpoint, TextFormat
from sinkstream.checkpoint.spec import (
    NO_ROPE,
    Activation,
    Attention,
    Block,
    DecoderSpec,
    Dense,
    Experts,
    Norm,
    Recurrent,
    RopeSpec,
    usual_scale,
    weight_slots,
)
from sinkstream.loading.load import check_options
from tests.reference.rope import Array

Draw = np.random.Generator


def random_spec(seed: int) -> DecoderSpec:
    """Return a small decoder of one to four layers; its one to three kinds differ in heads."""
    draw = np.random.default_rng(seed)
    kinds = [_random_block(draw) for _ in range(_one_of(draw, (1, 2, 3)))]
    layers = [_one_of(draw, kinds) for _ in range(_one_of(draw, (1, 2, 3, 4)))]
    if _sometimes(draw, 1):
        convolves = replace(_one_of(draw, kinds), mixer=_random_convolution(draw))
        layers.insert(int(draw.integers(len(layers) + 1)), convolves)
    return DecoderSpec.of_layers(
        layers,
        family="random",
        vocab_size=int(draw.integers(20, 90)),
        hidden_size=int(draw.integers(5, 60)),
        trained_length=4096,
        final_norm=_random_norm(draw),
        tie_embeddings=_sometimes(draw),
        embedding_scale=_scale(draw),
        logit_scale=_scale(draw),
        logit_soft_cap=_one_of(draw, (0.0, 0.0, 2.0)),
        logit_bias=_sometimes(draw),
    )


def random_weights(spec: DecoderSpec, seed: int) -> dict[str, Array]:
    """Draw the weights of a decoder: float32 numbers in float64, by the names of its slots."""
    draw = np.random.default_rng([seed, 1])
    weights = {}
    for slot in weight_slots(spec):
        if slot.cols == 1 and slot.name.endswith("_bias"):
            drawn = draw.normal(0, 0.3, slot.rows)
        elif slot.name.endswith(".conv"):
            drawn = draw.normal(0, 0.6, slot.rows)
        elif slot.cols == 1:
            drawn = draw.uniform(0.5, 1.5, slot.rows)
        else:
            drawn = draw.normal(0, 1.2 / np.sqrt(slot.cols), (slot.rows, slot.cols))
        weights[slot.name] = drawn.astype(np.float32).astype(np.float64)
    return weights


def load_spec(
    spec: DecoderSpec, weights: dict[str, Array], file: Path, **options: Any
) -> sinkstream.Model:
    """Load a decoder from its weights, which go through a file, as those of a checkpoint do.

    Args:
        spec: Of any family; the model has no tokenizer.
        weights: For each slot.
        file: Is written.
        options: Of `load`, with a window.
    """
    builder = _core.ModelBuilder(spec.as_dict())
    offsets, offset = [], 0
    with file.open("wb") as output:
        for slot in weight_slots(spec):
            builder.declare(slot.name, "F32", "F32", slot.rows, slot.cols)
            offsets.append((slot.name, offset))
            offset += output.write(weights[slot.name].astype("<f4").tobytes())
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        builder.read([(name, [(descriptor, begin, 0, 0)]) for name, begin in offsets], 1)
        while not builder.wait(1.0):
            pass
        assert builder.unread is None
    finally:
        builder.stop_reading()
        os.close(descriptor)
    checkpoint = Checkpoint(str(file), spec, TextFormat(None, None), (), _NoSource())
    return sinkstream.Model(builder, checkpoint, check_options(**options), None)


class _NoSource:
    """A `Source` from which everything was read."""

    def close(self) -> None:
        """Do nothing."""


def _random_feed_forward(draw: Draw, activations: Sequence[Activation]) -> Dense | Experts:
    dense = Dense(
        int(draw.integers(1, 70)), _one_of(draw, activations), _sometimes(draw), _sometimes(draw)
    )
    if dense.activation == "xielu":
        dense = replace(dense, xielu=(*draw.uniform(-1, 1, 3).tolist(), -1e-3))
    if not _sometimes(draw):
        return dense
    groups, size = _one_of(draw, (1, 1, 2, 4)), _one_of(draw, (2, 3, 5))
    chosen_groups = int(draw.integers(1, groups + 1))
    shared_size = _one_of(draw, (0, 7, 33))
    return Experts(
        experts=groups * size,
        chosen=int(draw.integers(1, chosen_groups * size + 1)),
        expert=dense,
        score=_one_of(draw, ("softmax", "sigmoid", "softmax_of_chosen", "sparse_mixer")),
        router_bias=_sometimes(draw),
        choice_bias=_sometimes(draw),
        expert_scale=_sometimes(draw),
        groups=groups,
        chosen_groups=chosen_groups,
        group_score=_one_of(draw, ("largest", "sum_of_two")),
        normalize=_sometimes(draw),
        normalize_eps=_one_of(draw, (0.0, 1e-3)),
        weight_scale=_scale(draw),
        jitter=0.3,
        shared_size=shared_size,
        shared_gate=shared_size > 0 and _sometimes(draw),
    )


def _random_convolution(draw: Draw) -> Recurrent:
    return Recurrent("short_conv", _one_of(draw, (2, 3, 4, 7)), _sometimes(draw), _sometimes(draw))


def _random_block(draw: Draw) -> Block:
    kv_heads, group = _one_of(draw, (1, 2, 3)), _one_of(draw, (1, 2, 3))
    heads, head_dim = kv_heads * group, _one_of(draw, (2, 6, 8, 14, 16, 34))
    attention_norm, attention_post_norm = _sometimes(draw, 3), _sometimes(draw)
    mlp_norm, mlp_post_norm = _sometimes(draw, 3), _sometimes(draw)
    activations = ["silu", "gelu", "gelu_tanh", "clamped_swiglu"]
    if mlp_norm or mlp_post_norm:
        # Without a norm their squares grow beyond float32's precision.
        activations += ["relu2", "xielu"]
    rope, temperature = _random_rope(draw, head_dim), _one_of(draw, (0.0, 0.0, 0.4))
    norm, qk_norm = _random_norm(draw), _one_of(draw, ("none", "head", "full", "rotated_head"))
    if qk_norm == "rotated_head":
        rope, temperature = replace(rope, attention_factor=1.0), 0.0
        norm = Norm("rms", norm.eps)
    return Block(
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=rope,
            scale=usual_scale(head_dim) * _scale(draw),
            window=_one_of(draw, (0, 0, 1, 3, 5, 40)),
            soft_cap=_one_of(draw, (0.0, 0.0, 1.5)),
            slopes=tuple(draw.uniform(0.02, 0.6, heads).tolist()) if _sometimes(draw) else (),
            qk_norm=qk_norm,
            qkv_bias=_sometimes(draw),
            output_bias=_sometimes(draw),
            clip=_one_of(draw, (0.0, 0.0, 0.7)),
            temperature=temperature,
            temperature_length=_one_of(draw, (1, 2, 5)),
            sink_logits=_sometimes(draw),
        ),
        feed_forward=_random_feed_forward(draw, activations),
        norm=norm,
        attention_norm=attention_norm,
        mlp_norm=mlp_norm,
        attention_post_norm=attention_post_norm,
        mlp_post_norm=mlp_post_norm,
        parallel=attention_norm and _sometimes(draw),
        residual_scale=_scale(draw),
    )  # fmt: skip


def _random_norm(draw: Draw) -> Norm:
    kind = _one_of(draw, ("rms", "layer"))
    return Norm(kind, _one_of(draw, (1e-6, 1e-3)), bias=kind == "layer" and _sometimes(draw))


def _random_rope(draw: Draw, head_dim: int) -> RopeSpec:
    pairs = _one_of(draw, (0, head_dim // 4, head_dim // 2, head_dim // 2))
    if pairs == 0:
        return NO_ROPE
    frequencies = _one_of(draw, (100.0, 10_000.0)) ** (-np.arange(pairs) / pairs)
    return RopeSpec(
        tuple(frequencies.tolist()),
        _one_of(draw, ("half", "interleaved")),
        _one_of(draw, (1.0, 1.0, 1.3)),
    )


def _one_of(draw: Draw, choices: Any) -> Any:
    return choices[draw.integers(len(choices))]


def _sometimes(draw: Draw, of_four: int = 2) -> bool:
    return bool(draw.integers(4) < of_four)


def _scale(draw: Draw) -> float:
    return 1.0 if _sometimes(draw) else float(draw.uniform(0.4, 1.6))
