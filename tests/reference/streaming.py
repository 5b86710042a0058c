"""StreamingLLM's protocol, implemented literally: a cache that is cut between forward passes.

Keys are cached unrotated. Every query rotates every key to the key's current position in the cache
(StreamingLLM, section 3.2, and the original's `pos_shift` modules). A forward pass sees the cache
and its own tokens. Afterwards the excess is evicted: the first `start_size` and the last
`recent_size` tokens stay. So a token sees S + R keys in addition to its own, a window of W = R + 1.
The package under test is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tests.reference.attention import Read, Scores, attend_one
from tests.reference.rope import Array, Rope


class Decoder(Protocol):
    """A model without its attention, such as `tests.reference.decoder.Decoder`."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        ...

    def rope_of(self, layer: int) -> Rope:
        """Return how a layer's queries and keys are rotated to their positions."""
        ...

    def scores_of(self, layer: int) -> Scores:
        """Return how its scores follow from their products."""
        ...

    def run(self, ids: Sequence[int], read: Read) -> Array:
        """Return the logits [tokens, vocab], with attention computed by `read`."""
        ...


class Streaming:
    """One decoder and its cache of `start_size` sinks and `recent_size` recent tokens.

    Args:
        decoder: The model.
        start_size: Sinks.
        recent_size: Most recent tokens kept.
        rings: For each layer the width of its native sliding window, including the current token,
            or None. A layer with such a window has no sinks. Default: no layer has one.
    """

    def __init__(
        self,
        decoder: Decoder,
        start_size: int,
        recent_size: int,
        rings: Sequence[int | None] | None = None,
    ) -> None:
        self.decoder = decoder
        # For each layer: the number of first tokens and of last tokens that stay.
        self.sizes = [
            (start_size, recent_size) if ring is None else (0, ring - 1)
            for ring in rings or [None] * decoder.layers
        ]
        self.keys: list[list[Array]] = [[] for _ in self.sizes]  # each [kv_heads, head_dim]
        self.values: list[list[Array]] = [[] for _ in self.sizes]

    @property
    def cached(self) -> int:
        """Count the tokens in the first layer's cache."""
        return len(self.keys[0])

    def feed(self, ids: Sequence[int]) -> Array:
        """Feed tokens one by one, evicting after each; return their logits [tokens, vocab]."""
        rows = []
        for token in ids:
            rows.append(self.feed_at_once([token]))
            self.evict()
        return np.concatenate(rows)

    def feed_at_once(self, ids: Sequence[int]) -> Array:
        """Feed tokens in one forward pass, without evicting; return their logits."""
        return self.decoder.run(ids, self._read)

    def evict(self) -> None:
        """Keep the first `start_size` tokens and the last `recent_size`."""
        for layer, (start_size, recent_size) in enumerate(self.sizes):
            if len(self.keys[layer]) > start_size + recent_size:
                self._cut(layer, start_size, len(self.keys[layer]) - recent_size)

    def evict_for_space(self, count: int) -> None:
        """Evict now what would be in excess after `count` more tokens."""
        for layer, (start_size, recent_size) in enumerate(self.sizes):
            if len(self.keys[layer]) + count > start_size + recent_size:
                self._cut(layer, start_size, len(self.keys[layer]) - recent_size + count)

    def evict_range(self, start: int, end: int) -> None:
        """Evict the tokens at positions [start, end) of the cache."""
        for layer in range(len(self.sizes)):
            self._cut(layer, start, end)

    def _cut(self, layer: int, start: int, end: int) -> None:
        del self.keys[layer][start:end]
        del self.values[layer][start:end]

    def _read(self, layer: int, queries: Array, keys: Array, values: Array) -> Array:
        rope, scores = self.decoder.rope_of(layer), self.decoder.scores_of(layer)
        read = []
        for query, key, value in zip(queries, keys, values, strict=True):
            self.keys[layer].append(key)
            self.values[layer].append(value)
            live_keys, live_values = np.stack(self.keys[layer]), np.stack(self.values[layer])
            read.append(attend_one(query, live_keys, live_values, rope, scores))
        return np.stack(read)
