"""Reads any number of tokens into a cache, with the same result as one token at a time.

All tokens of a forward pass share the keys that the cache returns, but each query has its own
window and its own distance to the sinks. A chunk that evicts therefore gets its own mask, and one
rotated copy of the sinks per query (`StreamingCache.evicting_inside`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sinkstream.streaming_llm.cache_layer import SinkLayer, StreamingCache
from sinkstream.streaming_llm.families import CachePlan

# Tokens per forward pass: beyond this, activations grow without a gain in speed.
CHUNK = 512


def read(model: Any, plan: CachePlan, cache: StreamingCache, ids: torch.Tensor) -> Iterator[Any]:
    """Yield the model's outputs, chunk by chunk.

    Args:
        model: The model of `plan`.
        plan: How its cache streams.
        cache: Changed in place.
        ids: int64 [batch, tokens].
    """
    start = 0
    while start < ids.shape[1]:
        cache.renumber_if_far()
        room = _tokens_without_eviction(cache)
        if room == 1 and plan.evicts_inside:
            chunk = ids[:, start : start + _evicting_chunk(plan)]
            yield _forward_evicting(model, cache, chunk)
        else:
            chunk = ids[:, start : start + min(room, CHUNK)]
            yield model(chunk, past_key_values=cache, use_cache=True)
        start += chunk.shape[1]


def _tokens_without_eviction(cache: StreamingCache) -> int:
    """Return how many tokens one forward pass can read without evicting between them."""
    if not cache.sink_layers:
        return CHUNK  # transformers' rings mask each query themselves
    layer = cache.sink_layers[0]
    return layer.first + layer.recent_size + 1 - layer.seen


def _evicting_chunk(plan: CachePlan) -> int:
    """Return a chunk length at which the copies of the sinks cost no more than the window."""
    return max(1, min(CHUNK // 2, (plan.recent_size + 256) // max(plan.start_size, 1)))


def _forward_evicting(model: Any, cache: StreamingCache, ids: torch.Tensor) -> Any:
    mask = mask_of_chunk(cache.sink_layers[0], ids.shape[1], model.dtype, ids.device)
    with cache.evicting_inside():
        return model(
            ids,
            attention_mask=mask.expand(ids.shape[0], -1, -1, -1),
            past_key_values=cache,
            use_cache=True,
        )


def mask_of_chunk(
    layer: SinkLayer, queries: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the additive mask of a chunk that evicts: 0 or the lowest finite number.

    Returns:
        [1, 1, queries, queries × sinks + window + queries]: each query's copy of the sinks, then
        the window, then the chunk, in the order of `SinkLayer.update`.
    """
    query = torch.arange(queries, device=device)
    owner = query.repeat_interleave(layer.start_size)  # the query of each copy of a sink
    index = torch.arange(layer.first, layer.seen + queries, device=device)
    own = query[:, None] + layer.seen
    oldest = (own - layer.recent_size).clamp(min=layer.first)
    seen = torch.cat([owner == query[:, None], (index >= oldest) & (index <= own)], dim=1)
    lowest = torch.finfo(dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, lowest)[
        None, None
    ]
