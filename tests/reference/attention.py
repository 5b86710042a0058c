"""Attention of an endless stream: every query re-rotates every key that it sees."""

from __future__ import annotations

import math

import numpy as np

from tests.reference.rope import Array, Rope
from tests.reference.window import live_indices, positions


def attend(
    queries: Array, keys: Array, values: Array, rope: Rope, sinks: int, window: int
) -> Array:
    """Return what each token reads from the tokens that are live at its time.

    Args:
        queries: [tokens, heads, head_dim], not rotated; token `t` has index `t`.
        keys: [tokens, kv_heads, head_dim], not rotated; heads is a multiple of kv_heads.
        values: [tokens, kv_heads, head_dim].
        rope: The rotary scheme.
        sinks: S, at least 0.
        window: W, at least 1.

    Returns:
        [tokens, heads, head_dim].
    """
    heads_per_group = queries.shape[1] // keys.shape[1]
    read = np.empty_like(queries)
    for t in range(len(queries)):
        live, place = live_indices(t, sinks, window), positions(t, sinks, window)
        query = rope.rotate(queries[t : t + 1], place[-1:])[0]
        rotated = rope.rotate(keys[live], place)
        for head in range(queries.shape[1]):
            group = head // heads_per_group
            scores = rotated[:, group] @ query[head] / math.sqrt(queries.shape[2])
            weights = np.exp(scores - scores.max())
            read[t, head] = weights / weights.sum() @ values[live, group]
    return read
