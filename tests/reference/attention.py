"""Attention of an endless stream: every query rotates every key that it sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.rope import Array, Rope
from tests.reference.window import live_indices

Read = Callable[[int, Array, Array, Array], Array]
"""Attention as a decoder calls it: read(layer, queries, keys, values), none of them rotated, each
[tokens, heads or kv_heads, head_dim]; returns [tokens, heads, head_dim]."""


@dataclass(frozen=True)
class Scores:
    """How scores follow from the product of a rotated query and a rotated key."""

    scale: float | None = None  # None: 1 / sqrt(head_dim)
    soft_cap: float = 0.0  # c: scores become c * tanh(score / c); 0: no cap
    # ALiBi: [heads] for a position; the key's bias minus the query's is added.
    bias: Callable[[int], Array] | None = None
    sink_logits: Array | None = None  # [heads], learned: scores without a value
    temperature: Callable[[int], float] | None = None  # multiplies a query, by its position
    # Of rotated queries, and of rotated keys: [..., head_dim].
    norms: tuple[Callable[[Array], Array], Callable[[Array], Array]] | None = None


PLAIN = Scores()


def alibi(slopes: Array) -> Scores:
    """Return scores that decrease by slope * distance in the cache; slopes [heads]."""
    return Scores(bias=lambda position: slopes * position)


def attend_one(
    query: Array, keys: Array, values: Array, rope: Rope, scores: Scores = PLAIN
) -> Array:
    """Return what one token reads from the tokens that are live at its time.

    A token's position is its rank among the live tokens.

    Args:
        query: [heads, head_dim], not rotated, of the newest live token.
        keys: [live, kv_heads, head_dim], not rotated, oldest first; heads is a multiple of
            kv_heads.
        values: [live, kv_heads, head_dim].
        rope: The rotary scheme.
        scores: Scale, cap and biases of the scores.

    Returns:
        [heads, head_dim].
    """
    live, kv_heads, head_dim = keys.shape
    scale = 1 / math.sqrt(head_dim) if scores.scale is None else scores.scale
    positions = list(range(live))
    rotated_query = rope.rotate(query[None], positions[-1:])[0]
    if scores.temperature is not None:
        rotated_query = rotated_query * scores.temperature(positions[-1])
    rotated_keys = rope.rotate(keys, positions)
    if scores.norms is not None:
        rotated_query = scores.norms[0](rotated_query)
        rotated_keys = scores.norms[1](rotated_keys)
    group = len(query) // kv_heads  # query heads that share a key head
    score = np.einsum("khd,hd->kh", np.repeat(rotated_keys, group, axis=1), rotated_query) * scale
    if scores.soft_cap > 0:
        score = scores.soft_cap * np.tanh(score / scores.soft_cap)
    if scores.bias is not None:
        score += np.stack([scores.bias(p) - scores.bias(positions[-1]) for p in positions])
    # Subtracting a constant from all scores does not change softmax. Without subtracting the
    # largest, exp would overflow at a score of 710.
    largest = score.max(axis=0)
    if scores.sink_logits is not None:
        largest = np.maximum(largest, scores.sink_logits)
    weights = np.exp(score - largest)
    total = weights.sum(axis=0)
    if scores.sink_logits is not None:
        total += np.exp(scores.sink_logits - largest)
    read: Array = np.einsum("kh,khd->hd", weights / total, np.repeat(values, group, axis=1))
    return read


def attend_to(
    queries: Array,
    keys: Array,
    values: Array,
    rope: Rope,
    seen: Sequence[Sequence[int]],
    scores: Scores = PLAIN,
) -> Array:
    """Return what each token of a stream reads; token `t` has index `t`.

    Args:
        queries: [tokens, heads, head_dim], not rotated.
        keys: [tokens, kv_heads, head_dim], not rotated.
        values: [tokens, kv_heads, head_dim].
        rope: The rotary scheme.
        seen: The indices of the tokens that each query sees, in rising order.
        scores: Scale, cap and biases of the scores.

    Returns:
        [tokens, heads, head_dim].
    """
    read = np.empty_like(queries)
    for t, live in enumerate(seen):
        read[t] = attend_one(queries[t], keys[live], values[live], rope, scores)
    return read


def attend(
    queries: Array,
    keys: Array,
    values: Array,
    rope: Rope,
    sinks: int,
    window: int,
    scores: Scores = PLAIN,
) -> Array:
    """Return what each token of a stream with these sinks and this window reads.

    Args:
        queries: As in `attend_to`, and so are keys, values, rope and scores.
        keys: [tokens, kv_heads, head_dim].
        values: [tokens, kv_heads, head_dim].
        rope: The rotary scheme.
        sinks: S, at least 0.
        window: W, at least 1.
        scores: Scale, cap and biases of the scores.
    """
    seen = [live_indices(t, sinks, window) for t in range(len(queries))]
    return attend_to(queries, keys, values, rope, seen, scores)
