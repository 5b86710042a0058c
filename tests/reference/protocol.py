"""StreamingLLM's protocol as a literal program: caches of unrotated keys, rotated where they lie.

A model is called with tokens and a cache. Keys are cached as they are; for every query, every key
is rotated to its place in the cache as it is at that moment (StreamingLLM, section 3.2, and the
`pos_shift` modules of the original). After a forward the cache evicts: it keeps the first
`start_size` tokens and the last `recent_size`. Before a turn of several tokens it makes room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tests.reference.rope import Array, Rope


class Positions(Protocol):
    """How a model tells places in the cache apart."""

    def scores(self, query: Array, place: int, keys: Array, places: Sequence[int]) -> Array:
        """Return [heads, keys] for a query [heads, head_dim] and keys [keys, heads, head_dim]."""
        ...


@dataclass(frozen=True)
class Rotary:
    """Query and keys are rotated to their places."""

    rope: Rope

    def scores(self, query: Array, place: int, keys: Array, places: Sequence[int]) -> Array:
        """See `Positions`."""
        query = self.rope.rotate(query[None], [place])[0]
        keys = self.rope.rotate(keys, places)
        return np.einsum("hd,khd->hk", query, keys) / np.sqrt(query.shape[-1])


@dataclass(frozen=True)
class Alibi:
    """A bias that falls with the distance in the cache: `bias(heads' slopes, place)`."""

    bias: Callable[[int], Array]  # [heads], for a place; may leave out what is equal for all keys

    def scores(self, query: Array, place: int, keys: Array, places: Sequence[int]) -> Array:
        """See `Positions`."""
        biases = np.stack([self.bias(p) for p in places], axis=1)
        return np.einsum("hd,khd->hk", query, keys) / np.sqrt(query.shape[-1]) + biases


class Block(Protocol):
    """One layer of a decoder, without its attention."""

    def project(self, hidden: Array) -> tuple[Array, Array, Array]:
        """Return queries [tokens, heads, head_dim], and keys and values [tokens, kv_heads, …]."""
        ...

    def finish(self, hidden: Array, read: Array) -> Array:
        """Return the layer's output, given what attention read: [tokens, heads × head_dim]."""
        ...


class Decoder(Protocol):
    """The rest of a model."""

    blocks: Sequence[Block]
    positions: Positions

    def embed(self, ids: Sequence[int]) -> Array:
        """Return [tokens, hidden]."""
        ...

    def logits(self, hidden: Array) -> Array:
        """Return [tokens, vocab]."""
        ...


class StartRecent:
    """A decoder and its cache: keys and values [tokens, kv_heads, head_dim] of each layer.

    Args:
        decoder: The model.
        start_size: Sinks.
        recent_size: Tokens kept besides.
        rings: For each layer the width of its native sliding window, the current token included,
            or None. Such a layer has no sinks.
    """

    def __init__(
        self,
        decoder: Decoder,
        start_size: int,
        recent_size: int,
        rings: Sequence[int | None] | None = None,
    ) -> None:
        self.decoder = decoder
        rings = rings or [None] * len(decoder.blocks)
        self.sizes = [(start_size, recent_size) if w is None else (0, w - 1) for w in rings]
        self.past: list[tuple[Array, Array] | None] = [None] * len(decoder.blocks)

    def step(self, token: int) -> Array:
        """Read one token as the protocol does, and return its logits [vocab]."""
        logits = self.forward([token])[0]
        self.evict()
        return logits

    def forward(self, ids: Sequence[int]) -> Array:
        """Read tokens, each of which sees the whole cache and those before it: [tokens, vocab]."""
        hidden = self.decoder.embed(ids)
        for layer, block in enumerate(self.decoder.blocks):
            queries, keys, values = block.project(hidden)
            past = self.past[layer]
            if past is not None:
                keys = np.concatenate([past[0], keys])
                values = np.concatenate([past[1], values])
            self.past[layer] = keys, values
            hidden = block.finish(hidden, self._attend(queries, keys, values))
        return self.decoder.logits(hidden)

    def _attend(self, queries: Array, keys: Array, values: Array) -> Array:
        shared = queries.shape[1] // keys.shape[1]  # query heads for each key head
        keys, values = np.repeat(keys, shared, axis=1), np.repeat(values, shared, axis=1)
        read = []
        for offset, query in enumerate(queries):
            place = len(keys) - len(queries) + offset
            live = range(place + 1)
            scores = self.decoder.positions.scores(query, place, keys[: place + 1], live)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            read.append(np.einsum("hk,khd->hd", weights, values[: place + 1]).reshape(-1))
        return np.stack(read)

    def evict(self) -> None:
        """Keep the first tokens and the last."""
        for layer, (start_size, recent_size) in enumerate(self.sizes):
            length = self._length(layer)
            if length > start_size + recent_size:
                self._cut(layer, start_size, length - recent_size)

    def evict_for_space(self, count: int) -> None:
        """Keep so few of the last that `count` tokens fit."""
        for layer, (start_size, recent_size) in enumerate(self.sizes):
            length = self._length(layer)
            if length + count > start_size + recent_size:
                self._cut(layer, start_size, length - recent_size + count)

    def evict_range(self, start: int, end: int) -> None:
        """Take the tokens out that lie at the places `start` to `end`, the end excluded."""
        for layer in range(len(self.past)):
            self._cut(layer, start, end)

    def _length(self, layer: int) -> int:
        past = self.past[layer]
        return 0 if past is None else len(past[0])

    def _cut(self, layer: int, start: int, end: int) -> None:
        past = self.past[layer]
        assert past is not None
        keys, values = past
        self.past[layer] = (
            np.concatenate([keys[:start], keys[end:]]),
            np.concatenate([values[:start], values[end:]]),
        )
