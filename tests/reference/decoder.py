"""A complete decoder for every family, on top of the reference attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference.attention import PLAIN, Read, Scores, attend
from tests.reference.rope import Array, Rope, rope_from_config


@dataclass(frozen=True)
class Decoder:
    """Embedding, layers, final norm and logits, with weights under their Hugging Face names.

    The weights that are present decide whether q, k and v have biases, whether q and k are
    normalized, and whether there is a separate output matrix.
    """

    weights: Mapping[str, Array]
    layers: int
    heads: int
    kv_heads: int
    norm_eps: float
    rope: Rope
    scores: Scores = PLAIN

    @classmethod
    def from_hugging_face(
        cls, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]
    ) -> Decoder:
        """Build it from a config.json and its tensors, which are widened to float64."""
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        return cls(
            weights=_separate(
                {name: np.asarray(w, np.float64) for name, w in weights.items()},
                config["num_key_value_heads"] * head_dim,
            ),
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            norm_eps=config["rms_norm_eps"],
            rope=rope_from_config(config, head_dim),
        )

    def forward(
        self, ids: Sequence[int], sinks: int = 0, window: int | Sequence[int] | None = None
    ) -> Array:
        """Return the logits [tokens, vocab] of one stream that starts at index 0.

        Args:
            ids: Token ids; may be empty.
            sinks: S.
            window: W; None is ordinary dense attention. Or one for each layer: a layer whose
                window is shorter than the longest was trained with it, and has no sinks.
        """
        width = max(len(ids), 1) if window is None else window
        widths = [width] * self.layers if isinstance(width, int) else list(width)

        def read(layer: int, queries: Array, keys: Array, values: Array) -> Array:
            its_sinks = sinks if widths[layer] == max(widths) else 0
            return attend(queries, keys, values, self.rope, its_sinks, widths[layer], self.scores)

        return self.run(ids, read)

    def run(self, ids: Sequence[int], read: Read) -> Array:
        """Return the logits [tokens, vocab], with attention computed by `read`.

        Args:
            ids: Token ids.
            read: Called for each layer in turn.
        """
        hidden = self.weights["model.embed_tokens.weight"][list(ids)]
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            normed = self._norm(hidden, at + "input_layernorm.weight")
            queries, keys, values = self._queries_keys_values(normed, at + "self_attn.")
            found = read(layer, queries, keys, values)
            flat = found.reshape(len(ids), found.shape[1] * found.shape[2])
            hidden = hidden + self._linear(flat, at + "self_attn.o_proj")
            normed = self._norm(hidden, at + "post_attention_layernorm.weight")
            hidden = hidden + self._mlp(normed, at + "mlp.")
        hidden = self._norm(hidden, "model.norm.weight")
        output = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return hidden @ output.T

    def _queries_keys_values(self, x: Array, at: str) -> tuple[Array, Array, Array]:
        queries = self._heads(x, at + "q_proj", self.heads)
        keys = self._heads(x, at + "k_proj", self.kv_heads)
        values = self._heads(x, at + "v_proj", self.kv_heads)
        if at + "q_norm.weight" in self.weights:
            queries = self._norm(queries, at + "q_norm.weight")
            keys = self._norm(keys, at + "k_norm.weight")
        return queries, keys, values

    def _heads(self, x: Array, name: str, heads: int) -> Array:
        y = self._linear(x, name)
        return y.reshape(len(x), heads, y.shape[1] // heads)

    def _mlp(self, x: Array, at: str) -> Array:
        gate = self._linear(x, at + "gate_proj")
        silu = gate / (1 + np.exp(-gate))
        return self._linear(silu * self._linear(x, at + "up_proj"), at + "down_proj")

    def _linear(self, x: Array, name: str) -> Array:
        y = x @ self.weights[name + ".weight"].T
        return y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y

    def _norm(self, x: Array, name: str) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        normed: Array = x / np.sqrt(mean_square + self.norm_eps) * self.weights[name]
        return normed


def _separate(weights: dict[str, Array], kv: int) -> dict[str, Array]:
    """Cut fused tensors into q, k and v, with `kv` rows each in the last two, and gate and up."""
    found: dict[str, Array] = {}
    for name, weight in weights.items():
        if "qkv_proj" in name:
            parts = np.split(weight, [len(weight) - 2 * kv, len(weight) - kv])
            found |= {
                name.replace("qkv", part): rows for part, rows in zip("qkv", parts, strict=True)
            }
        elif "gate_up_proj" in name:
            gate, up = np.split(weight, 2)
            found |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        else:
            found[name] = weight
    return found
