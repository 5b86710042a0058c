"""StreamingLLM's interface for transformers: endless text from an unmodified model.

    from sinkstream.streaming_llm import enable_streaming_llm

    kv_cache = enable_streaming_llm(model, start_size=4, recent_size=2000)
    model.generate(input_ids, past_key_values=kv_cache.new_cache(), streamer=streamer, …)

The model is not changed: no forward method is patched, no hook is set, no attribute is written.
Streaming happens entirely in the cache, which is passed explicitly. Making generate() find the
cache by itself would mean replacing a private method, whose name changes between releases of
transformers, and a model that streams for one caller would then also stream for all others.

Two limits. First, transformers computes angles in float32, whose error grows with the index: up to
t × 6e-8 radians at index t, which shows in a float32 model after a few thousand tokens. Therefore
`kv_cache(past)` after a forward pass, `kv_cache.read` and `kv_cache.inputs_for_generate` renumber
the live tokens from time to time. This is impossible within one call of generate(); sinkstream's
own models do not need it. Second, generate() keeps every generated id and, except for MPT, every
position. These two lists grow by 16 bytes per token and row, and each step copies both, which takes
time in very long calls. The cache does not grow.
"""

from __future__ import annotations

from typing import Any

# `requirement` first: it reports a missing transformers in one sentence.
from sinkstream.streaming_llm import enabled, requirement  # noqa: F401
from sinkstream.streaming_llm.cache_layer import SinkLayer, StreamingCache
from sinkstream.streaming_llm.kv_cache import StartRecentKVCache

__all__ = [
    "SinkLayer",
    "StartRecentKVCache",
    "StreamingCache",
    "disable_streaming_llm",
    "enable_streaming_llm",
]


def enable_streaming_llm(
    model: Any, start_size: int = 4, recent_size: int = 2000
) -> StartRecentKVCache:
    """Enable a transformers model to stream, and return the object that creates its caches.

    Args:
        model: A model of the families falcon, gpt_neox, llama, mistral, mpt, qwen2 or qwen3.
        start_size: Number of sinks, the first tokens, which always stay; at least 0.
        recent_size: Number of other tokens to keep, at least 1. A query sees both, and itself.

    Returns:
        A `StartRecentKVCache` for this model.

    Raises:
        TypeError: `model` is not a transformers model.
        InvalidArgument: The model cannot stream, or not with these sizes; the message says why.

    Warns:
        UserWarning: The cache is longer than the trained length of the model.
    """
    kv_cache = StartRecentKVCache(start_size, recent_size, model=model)
    enabled.enable(model)
    return kv_cache


def disable_streaming_llm(model: Any) -> None:
    """Undo `enable_streaming_llm` and the `enable_…_pos_shift_attention` functions.

    The model itself needs no change. The objects that they returned create no more caches.
    """
    enabled.disable(model)
