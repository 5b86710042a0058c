"""StreamingLLM's interface for transformers: endless text from an unmodified model.

    from sinkstream.streaming_llm import enable_streaming_llm

    kv_cache = enable_streaming_llm(model, start_size=4, recent_size=2000)
    model.generate(input_ids, past_key_values=kv_cache.new_cache(), streamer=streamer, …)

No forward method is patched and no attribute is set: the cache does the streaming. A generate()
call without a cache streams too: once its own cache is full, a hook before the model's forward
method replaces it (see `before_forward`). Other callers are not affected.

Two limits. First, transformers computes angles in float32, whose error grows with the index: up to
t × 6e-8 radians at index t, which shows in a float32 model after a few thousand tokens. Therefore
every operation of a `StartRecentKVCache` renumbers the live tokens from time to time. This is
impossible within one call of generate(); sinkstream's own models do not need it. Second, generate()
keeps every generated id and, except for MPT, every position. These two lists grow by 16 bytes per
token and row, and each step copies both, which takes time in very long calls. The cache does not
grow.
"""

from __future__ import annotations

# `requirement` first: it reports a missing transformers in one sentence.
from sinkstream.streaming_llm import requirement  # noqa: F401
from sinkstream.streaming_llm.cache_layer import SinkLayer, StreamingCache

# The function takes the place of its module, which keeps the original's path.
from sinkstream.streaming_llm.enable_streaming_llm import (
    disable_streaming_llm,
    enable_streaming_llm,
)
from sinkstream.streaming_llm.kv_cache import StartRecentKVCache

__all__ = [
    "SinkLayer",
    "StartRecentKVCache",
    "StreamingCache",
    "disable_streaming_llm",
    "enable_streaming_llm",
]
