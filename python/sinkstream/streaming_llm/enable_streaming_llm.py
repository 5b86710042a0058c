"""Enabling a model, under the original's name and module path."""

from __future__ import annotations

from typing import Any

from sinkstream.streaming_llm import enabled
from sinkstream.streaming_llm.kv_cache import StartRecentKVCache
from sinkstream.streaming_llm.plain_generate import stream_in_generate

__all__ = ["disable_streaming_llm", "enable_streaming_llm"]


def enable_streaming_llm(
    model: Any, start_size: int = 4, recent_size: int = 2000
) -> StartRecentKVCache:
    """Enable a transformers model to stream, and return the object that creates its caches.

    `model.generate(…)` then streams by itself: up to `start_size + recent_size` tokens its
    output is unchanged, and beyond them the cache stops growing. A prompt longer than that is first
    read densely in one forward pass, as in the original; `inputs_for_generate` reads it in chunks.

    Args:
        model: A model of one of the families falcon, gpt_neox, llama, mistral, mpt, qwen2 and
            qwen3.
        start_size: Number of sinks, the tokens at the start that always stay; at least 0.
        recent_size: Number of other tokens to keep, at least 1. A query sees the sinks, these
            tokens, and itself.

    Returns:
        A `StartRecentKVCache` for this model.

    Raises:
        TypeError: `model` is not a transformers model.
        InvalidArgument: The model cannot stream, or not with these sizes; the message says why.

    Warns:
        UserWarning: The cache is longer than the model's trained length. A later generate() call
            that gets no cache and cannot stream also warns, once.
    """
    kv_cache = StartRecentKVCache(start_size, recent_size, model=model)
    stream_in_generate(model, kv_cache._plan_of("enable_streaming_llm", model))
    return kv_cache


def disable_streaming_llm(model: Any) -> None:
    """Undo `enable_streaming_llm` and the `enable_…_pos_shift_attention` functions.

    The model is then as before. Objects returned by these functions create no more caches.
    """
    enabled.disable(model)
