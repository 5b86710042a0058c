"""Attention of an endless stream: every query re-rotates every key that it sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tests.reference.rope import Array, Rope
from tests.reference.window import live_indices


@dataclass(frozen=True)
class Scores:
    """What becomes of the product of a rotated query and a rotated key."""

    scale: float | None = None  # None: 1 / sqrt(head_dim)
    soft_cap: float = 0.0  # c: scores become c * tanh(score / c); 0: they do not
    slopes: Array | None = None  # [heads], ALiBi: slope * distance in the cache is taken off
    sink_logits: Array | None = None  # [heads], learned: scores that bring no value


PLAIN = Scores()


def attend_one(
    query: Array, keys: Array, values: Array, rope: Rope, scores: Scores = PLAIN
) -> Array:
    """Return what one token reads from the tokens that are live at its time.

    A token's position is its place among the live ones.

    Args:
        query: [heads, head_dim], not rotated, of the youngest live token.
        keys: [live, kv_heads, head_dim], not rotated, the oldest first; heads is a multiple of
            kv_heads.
        values: [live, kv_heads, head_dim].
        rope: The rotary scheme.
        scores: What makes them special.

    Returns:
        [heads, head_dim].
    """
    live, kv_heads, head_dim = keys.shape
    scale = 1 / math.sqrt(head_dim) if scores.scale is None else scores.scale
    positions = list(range(live))
    turned = rope.rotate(query[None], positions[-1:])[0]
    rotated = rope.rotate(keys, positions)
    distances = positions[-1] - np.arange(live)
    read = np.empty_like(query)
    for head in range(len(query)):
        group = head // (len(query) // kv_heads)
        score = rotated[:, group] @ turned[head] * scale
        if scores.soft_cap > 0:
            score = scores.soft_cap * np.tanh(score / scores.soft_cap)
        if scores.slopes is not None:
            score = score - scores.slopes[head] * distances
        weights = np.exp(score)
        total = weights.sum()
        if scores.sink_logits is not None:
            total += np.exp(scores.sink_logits[head])
        read[head] = weights / total @ values[:, group]
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
    """Return what each token of a stream reads; token `t` has index `t`.

    Args:
        queries: [tokens, heads, head_dim], not rotated.
        keys: [tokens, kv_heads, head_dim], not rotated.
        values: [tokens, kv_heads, head_dim].
        rope: The rotary scheme.
        sinks: S, at least 0.
        window: W, at least 1.
        scores: What makes them special.

    Returns:
        [tokens, heads, head_dim].
    """
    read = np.empty_like(queries)
    for t in range(len(queries)):
        live = live_indices(t, sinks, window)
        read[t] = attend_one(queries[t], keys[live], values[live], rope, scores)
    return read
