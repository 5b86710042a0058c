"""The original method's protocol: a cache that is cut between forwards.

The cache holds keys that are not rotated, and every forward rotates all of them at their places in
it. A forward sees the cache and itself; what is too much is evicted afterwards. So a token finds
S + R keys beside itself, which is a window of W = R + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.attention import attend_one
from tests.reference.decoder import Decoder
from tests.reference.rope import Array


class Streaming:
    """One decoder and its cache of `start_size` sinks and `recent_size` recent tokens."""

    def __init__(self, decoder: Decoder, start_size: int, recent_size: int) -> None:
        self.decoder = decoder
        self.start_size = start_size
        self.recent_size = recent_size
        self.keys: list[list[Array]] = [[] for _ in range(decoder.layers)]  # [kv_heads, head_dim]
        self.values: list[list[Array]] = [[] for _ in range(decoder.layers)]

    @property
    def cached(self) -> int:
        """Count the tokens in the cache."""
        return len(self.keys[0])

    def feed(self, ids: Sequence[int]) -> Array:
        """Give tokens one by one, evicting after each; return their logits [tokens, vocab]."""
        rows = []
        for token in ids:
            rows.append(self.feed_at_once([token]))
            self.evict()
        return np.concatenate(rows)

    def feed_at_once(self, ids: Sequence[int]) -> Array:
        """Give tokens in one forward, which evicts nothing; return their logits."""
        return self.decoder.run(ids, self._read)

    def evict(self) -> None:
        """Keep the first start_size and the last recent_size tokens."""
        self.evict_range(self.start_size, max(self.start_size, self.cached - self.recent_size))

    def evict_for_space(self, count: int) -> None:
        """Evict now what would be too much after `count` more tokens."""
        if self.cached + count > self.start_size + self.recent_size:
            self.evict_range(self.start_size, self.cached - self.recent_size + count)

    def evict_range(self, start: int, end: int) -> None:
        """Evict the tokens at these places of the cache."""
        for layer in range(self.decoder.layers):
            del self.keys[layer][start:end]
            del self.values[layer][start:end]

    def _read(self, layer: int, queries: Array, keys: Array, values: Array) -> Array:
        read = []
        for query, key, value in zip(queries, keys, values, strict=True):
            self.keys[layer].append(key)
            self.values[layer].append(value)
            live_keys, live_values = np.stack(self.keys[layer]), np.stack(self.values[layer])
            read.append(attend_one(query, live_keys, live_values, self.decoder.rope))
        return np.stack(read)
