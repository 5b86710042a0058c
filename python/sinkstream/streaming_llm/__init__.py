"""StreamingLLM's names on today's transformers: endless text from a model of theirs.

    from sinkstream.streaming_llm import enable_streaming_llm

    kv_cache = enable_streaming_llm(model, start_size=4, recent_size=2000)
    model.generate(input_ids, past_key_values=kv_cache.new_cache(), streamer=streamer, …)

The model itself stays as it is: no forward is patched, no hook is set, nothing is written into it.
All that streams is the cache, and so the cache is passed explicitly. A generate() that found it by
itself would need a method of the instance replaced, under a private name that transformers changes
from release to release; and a model that streams for one caller would stream for all.

Two limits. Transformers computes angles in float32, whose error grows with the index: at index t up
to t × 6e-8 radians, which a float32 model shows after some thousand tokens. `kv_cache(past)` after
a forward, `kv_cache.read` and `kv_cache.inputs_for_generate` therefore number the live tokens anew
from time to time; within one call of generate() nobody can, and sinkstream's own models need not.
And generate() keeps every id that it made and, but for MPT, every position: these two lists grow by
16 bytes a token and row, and each step copies both, so that they cost time in very long calls. The
cache does not grow.
"""

from __future__ import annotations

from typing import Any

# requirement first: it says a sentence where transformers is missing.
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
    """Enable a model of transformers to stream, and return the object that makes its caches.

    Args:
        model: A model of the families falcon, gpt_neox, llama, mistral, mpt, qwen2 or qwen3.
        start_size: Sinks: the first tokens, which stay for ever; at least 0.
        recent_size: Tokens kept besides, at least 1. A query sees both and itself.

    Returns:
        A `StartRecentKVCache` that knows its model.

    Raises:
        TypeError: It is no model of transformers.
        InvalidArgument: The model cannot stream, or not with these sizes; the sentence says why.

    Warns:
        UserWarning: The cache is longer than the texts that the model was trained with.
    """
    kv_cache = StartRecentKVCache(start_size, recent_size, model=model)
    enabled.enable(model)
    return kv_cache


def disable_streaming_llm(model: Any) -> None:
    """Take back `enable_streaming_llm` and the `enable_…_pos_shift_attention` functions.

    Nothing in the model needs undoing. Objects that they returned make no more caches.
    """
    enabled.disable(model)
