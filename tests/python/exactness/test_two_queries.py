"""The two-query form of attention equals the definition, in float64, without the package.

The fast kernels rotate each key once, when it is written, and each query twice: to its absolute
index for window keys, and to its rank among the live tokens for sinks. This is that form in numpy,
compared with the literal one, which re-rotates every key.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.data import tiny
from tests.reference.attention import attend_one
from tests.reference.rope import Array, Rope, rope_from_config
from tests.reference.window import live_indices

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16


def rope_named(name: str) -> Rope:
    return rope_from_config(tiny.CONFIGS[name][0], HEAD_DIM)


def softmax_read(scores: Array, values: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum() @ values)


def two_queries(
    rope: Rope, t: int, sinks: int, window: int, query: Array, keys: Array, values: Array
) -> Array:
    """Attend for the query of token `t`; row r of keys and values belongs to the r-th live token.

    Keys are rotated to their absolute index, and the query is rotated twice.
    """
    live = live_indices(t, sinks, window)
    rank = min(t, sinks + window - 1)
    to_window, to_sinks = rope.rotate(np.stack([query, query]), [t, rank])
    rotated = rope.rotate(keys, live)
    is_sink = np.asarray(live) < sinks
    return np.stack(
        [
            softmax_read(
                np.where(
                    is_sink, rotated[:, h // 3] @ to_sinks[h], rotated[:, h // 3] @ to_window[h]
                )
                / math.sqrt(HEAD_DIM),
                values[:, h // 3],
            )
            for h in range(HEADS)
        ]
    )


def largest_difference(rope: Rope, t: int, sinks: int, window: int) -> float:
    draw = np.random.default_rng([t, sinks, window])
    count = len(live_indices(t, sinks, window))
    query = draw.normal(size=(HEADS, HEAD_DIM)) * 2
    keys, values = draw.normal(size=(2, count, KV_HEADS, HEAD_DIM))
    found = two_queries(rope, t, sinks, window, query, keys, values)
    return float(np.abs(found - attend_one(query, keys, values, rope)).max())


@pytest.mark.parametrize("name", ["llama", *tiny.ROPE_SCHEMES])
def test_two_queries_equal_the_definition_before_at_and_after_the_cache_fills(name: str) -> None:
    rope = rope_named(name)
    for sinks in range(6):
        for window in (1, 2, 5, 9):
            for t in range(3 * (sinks + window)):
                assert largest_difference(rope, t, sinks, window) < 1e-12


@pytest.mark.parametrize("sinks", [0, 1, 4])
def test_two_queries_equal_the_definition_at_index_ten_million(sinks: int) -> None:
    # The absolute angle has a float64 rounding error of 1e7 * 1.1e-16, hence the wider bound.
    assert largest_difference(rope_named("llama"), 10_000_000, sinks, 60) < 1e-8


def test_absolute_positions_for_sinks_would_be_caught() -> None:
    # The bound above is meaningful only if the common mistake breaks it: the query at its index
    # for every key, so that the distance to the sinks grows without bound.
    rope, t, sinks, window = rope_named("llama"), 500, 4, 12
    draw = np.random.default_rng(7)
    live = live_indices(t, sinks, window)
    query = draw.normal(size=(HEADS, HEAD_DIM)) * 2
    keys, values = draw.normal(size=(2, len(live), KV_HEADS, HEAD_DIM))
    expected = attend_one(query, keys, values, rope)
    turned, rotated = rope.rotate(query[None], [t])[0], rope.rotate(keys, live)
    wrong = np.stack(
        [
            softmax_read(rotated[:, h // 3] @ turned[h] / math.sqrt(HEAD_DIM), values[:, h // 3])
            for h in range(HEADS)
        ]
    )
    assert np.abs(wrong - expected).max() > 1e-2
