"""Positions within the cache for Llama and its relatives, under the original's name."""

from __future__ import annotations

from typing import Any

from sinkstream.streaming_llm.pos_shift import enable_pos_shift

__all__ = ["enable_llama_pos_shift_attention"]


def enable_llama_pos_shift_attention(model: Any) -> None:
    """Let a `StartRecentKVCache` that was made by itself keep this model's positions right.

    Despite its name it modifies nothing. It notes the model, so that
    ``past = kv_cache(model(ids, past_key_values=past).past_key_values)``, the loop of the
    original's scripts, turns the model's own cache into one that streams.
    `disable_streaming_llm(model)` takes it back.

    Args:
        model: A model of the families llama, mistral, qwen2 or qwen3.

    Raises:
        TypeError: It is no model of transformers.
        InvalidArgument: It is of another family.
    """
    enable_pos_shift(
        "enable_llama_pos_shift_attention", model, ("llama", "mistral", "qwen2", "qwen3")
    )
