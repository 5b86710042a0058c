"""A complete decoder of any family, on top of the reference attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tests.reference.attention import Read, Scores, alibi, attend_to
from tests.reference.mlp import feed_forward
from tests.reference.rope import Array, Rope
from tests.reference.window import live_indices

Seen = Sequence[Sequence[int]]
"""For each token the indices of the tokens that its query sees, in rising order."""


@dataclass(frozen=True)
class Decoder:
    """Embedding, layers, final norm and logits, as a spec describes them.

    The spec has the attributes of `sinkstream.checkpoint.spec.DecoderSpec`; weights are float64,
    under the names of its weight slots, such as "layers.3.q".
    """

    spec: Any
    weights: Mapping[str, Array]

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.spec.block_of_layer)

    def block(self, layer: int) -> Any:
        """Return what kind of layer it is."""
        return self.spec.blocks[self.spec.block_of_layer[layer]]

    def rope_of(self, layer: int) -> Rope:
        """Return how the layer's queries and keys are rotated."""
        rope = self.block(layer).mixer.rope
        return Rope(
            np.array(rope.inverse_frequencies, np.float64), rope.attention_factor, rope.pairing
        )

    def scores_of(self, layer: int) -> Scores:
        """Return how the layer's scores follow from their products."""
        block, at = self.block(layer), f"layers.{layer}."
        attention = block.mixer
        slopes = np.array(attention.slopes, np.float64)
        norms = [
            partial(self._norm, norm=block.norm, name=f"{at}{name}_norm") for name in ("q", "k")
        ]
        return Scores(
            scale=attention.scale,
            soft_cap=attention.soft_cap,
            bias=alibi(slopes).bias if len(slopes) else None,
            sink_logits=(
                self.weights[f"{at}sink_logits"] if attention.sink_logits else None
            ),
            temperature=lambda position: 1 + attention.temperature * math.log(
                1 + position // attention.temperature_length
            ),
            norms=(norms[0], norms[1]) if attention.qk_norm == "rotated_head" else None,
        )  # fmt: skip

    def kept(self, layer: int, sinks: int, window: int) -> tuple[int, int]:
        """Return S and W of a layer: one that was trained with a shorter window keeps just that."""
        mixer = self.block(layer).mixer
        own = mixer.window if mixer.kind == "attention" else 0
        return (0, own) if 0 < own <= window else (sinks, window)

    def forward(self, ids: Sequence[int], sinks: int = 0, window: int | None = None) -> Array:
        """Return the logits [tokens, vocab] of one stream that starts at index 0.

        Args:
            ids: Token ids; may be empty.
            sinks: S.
            window: W; None: as long as the text.
        """
        width = max(len(ids), 1) if window is None else window
        kept = [self.kept(layer, sinks, width) for layer in range(self.layers)]
        return self.forward_seen(
            ids, [[live_indices(t, s, w) for t in range(len(ids))] for s, w in kept]
        )

    def forward_seen(self, ids: Sequence[int], seen: Sequence[Seen]) -> Array:
        """Return the logits [tokens, vocab], given what each query of each layer sees."""

        def read(layer: int, queries: Array, keys: Array, values: Array) -> Array:
            rope, scores = self.rope_of(layer), self.scores_of(layer)
            return attend_to(queries, keys, values, rope, seen[layer], scores)

        return self.run(ids, read)

    def run(self, ids: Sequence[int], read: Read) -> Array:
        """Return the logits [tokens, vocab], with attention computed by `read`.

        Args:
            ids: Token ids; from the first one of a text on, if some layers keep a state.
            read: Called for each layer with attention in turn.
        """
        spec = self.spec
        hidden = self.weights["embedding"][list(ids)] * spec.embedding_scale
        for layer in range(self.layers):
            hidden = self._layer(layer, hidden, read)
        hidden = self._norm(hidden, spec.final_norm, "final_norm")
        output = self.weights["embedding" if spec.tie_embeddings else "output"]
        bias = self.weights["output_bias"] if spec.logit_bias else 0
        logits: Array = (hidden @ output.T + bias) * spec.logit_scale
        return _capped(logits, spec.logit_soft_cap)

    def _layer(self, layer: int, hidden: Array, read: Read) -> Array:
        block, at = self.block(layer), f"layers.{layer}."

        def norm(has_norm: bool, x: Array, name: str) -> Array:
            return self._norm(x, block.norm, at + name) if has_norm else x

        normed = norm(block.attention_norm, hidden, "attention_norm")
        if block.mixer.kind == "attention":
            found = self._attention(layer, normed, read)
        else:
            found = self._convolution(layer, normed)
        found = norm(block.attention_post_norm, found, "attention_post_norm")
        after = hidden + block.residual_scale * found
        if block.parallel and not block.mlp_norm:
            mlp_input = normed
        else:
            mlp_input = norm(block.mlp_norm, hidden if block.parallel else after, "mlp_norm")
        found = feed_forward(
            block.feed_forward,
            mlp_input,
            partial(self._linear, at=at),
            lambda name: self.weights[at + name],
        )
        found = norm(block.mlp_post_norm, found, "mlp_post_norm")
        return after + block.residual_scale * found

    def _attention(self, layer: int, x: Array, read: Read) -> Array:
        block, at = self.block(layer), f"layers.{layer}."
        attention = block.mixer
        parts = []
        for name, heads in (
            ("q", attention.heads), ("k", attention.kv_heads), ("v", attention.kv_heads),
        ):  # fmt: skip
            part = self._linear(x, name, attention.qkv_bias, at)
            if attention.clip > 0:
                part = np.clip(part, -attention.clip, attention.clip)
            if name != "v" and attention.qk_norm == "full":
                part = self._norm(part, block.norm, f"{at}{name}_norm")
            part = part.reshape(len(x), heads, attention.head_dim)
            if name != "v" and attention.qk_norm == "head":
                part = self._norm(part, block.norm, f"{at}{name}_norm")
            parts.append(part)
        found = read(layer, *parts)
        flat = found.reshape(len(x), attention.heads * attention.head_dim)
        return self._linear(flat, "o", attention.output_bias, at)

    def _convolution(self, layer: int, x: Array) -> Array:
        mixer, at = self.block(layer).mixer, f"layers.{layer}."
        assert mixer.recurrence == "short_conv"
        taps = self.weights[at + "conv"].reshape(-1, mixer.conv_size)
        before, after, x = np.split(self._linear(x, "conv_in", mixer.bias, at), 3, axis=1)
        inputs = np.concatenate([np.zeros((mixer.conv_size - 1, x.shape[1])), before * x])
        sums = sum(taps[:, k] * inputs[k : k + len(x)] for k in range(mixer.conv_size))
        if mixer.conv_bias:
            sums = sums + self.weights[at + "conv_bias"]
        return self._linear(after * sums, "conv_out", mixer.bias, at)

    def _linear(self, x: Array, name: str, has_bias: bool, at: str) -> Array:
        y: Array = x @ self.weights[at + name].reshape(-1, x.shape[1]).T
        return y + self.weights[f"{at}{name}_bias"] if has_bias else y

    def _norm(self, x: Array, norm: Any, name: str) -> Array:
        if norm.kind == "layer":
            x = x - np.mean(x, axis=-1, keepdims=True)
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        normed: Array = x / np.sqrt(mean_square + norm.eps) * self.weights[name]
        return normed + self.weights[name + "_bias"] if norm.bias else normed


def _capped(x: Array, cap: float) -> Array:
    return cap * np.tanh(x / cap) if cap > 0 else x
