"""Positions within the cache for Llama and its relatives, under the original's name."""

from __future__ import annotations

from typing import Any

from sinkstream.streaming_llm.pos_shift import enable_pos_shift

__all__ = ["enable_llama_pos_shift_attention"]


def enable_llama_pos_shift_attention(model: Any) -> None:
    """Keep this model's positions correct in a `StartRecentKVCache` that is created without it.

    Despite its name it modifies nothing. It registers the model, so that the loop of the original's
    scripts, ``past = kv_cache(model(ids, past_key_values=past).past_key_values)``, turns the
    model's own cache into a streaming one. `disable_streaming_llm(model)` undoes it.

    Args:
        model: A model of the families llama, mistral, qwen2 or qwen3.

    Raises:
        TypeError: `model` is not a transformers model.
        InvalidArgument: It belongs to a different family.
    """
    enable_pos_shift(
        "enable_llama_pos_shift_attention", model, ("llama", "mistral", "qwen2", "qwen3")
    )
