"""Positions within the cache for GPT-NeoX (Pythia), under the original's name."""

from __future__ import annotations

from typing import Any

from sinkstream.streaming_llm.pos_shift import enable_pos_shift

__all__ = ["enable_gpt_neox_pos_shift_attention"]


def enable_gpt_neox_pos_shift_attention(model: Any) -> None:
    """Let a `StartRecentKVCache` that was made by itself keep this model's positions right.

    Despite its name it modifies nothing. It notes the model, so that
    ``past = kv_cache(model(ids, past_key_values=past).past_key_values)``, the loop of the
    original's scripts, turns the model's own cache into one that streams.
    `disable_streaming_llm(model)` takes it back.

    Args:
        model: A model of the family gpt_neox.

    Raises:
        TypeError: It is no model of transformers.
        InvalidArgument: It is of another family.
    """
    enable_pos_shift("enable_gpt_neox_pos_shift_attention", model, ("gpt_neox",))
