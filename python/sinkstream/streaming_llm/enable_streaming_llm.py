"""Enabling a model, under the original's name and module path.

generate() then streams without being passed a cache. It creates a `DynamicCache`, and takes the
next one from each output of the model. A hook of PyTorch's, called before the model's forward
method, therefore suffices: when that cache is full, the hook passes a `StreamingCache` with the
same tokens in its place. Until then nothing differs.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from sinkstream.errors import warn_caller
from sinkstream.streaming_llm import enabled
from sinkstream.streaming_llm.families import CachePlan
from sinkstream.streaming_llm.kv_cache import StartRecentKVCache

__all__ = ["disable_streaming_llm", "enable_streaming_llm"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


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


def stream_in_generate(model: Any, plan: CachePlan) -> None:
    """Enable a model, and let its generate() stream as planned."""
    entry = enabled.enable(model)
    entry.plan, entry.has_warned = plan, False
    if entry.hook is None:
        entry.hook = model.register_forward_pre_hook(before_forward, with_kwargs=True)


def before_forward(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Replace the full cache of a generate() that was passed none; a copy of a model has no entry.

    Returns:
        The arguments of the forward method, or None to leave them.
    """
    past = kwargs.get("past_key_values")
    if type(past) is not DynamicCache:
        return None
    entry, ids = enabled.entry_of(model), kwargs.get("input_ids")
    if entry is None or entry.plan is None or not isinstance(ids, torch.Tensor):
        return None
    length = past.get_seq_length()
    if length == 0 or length + ids.shape[1] <= entry.plan.start_size + entry.plan.recent_size:
        return None
    # generate() marks a cache that was passed to it.
    is_chosen = past.offloading or getattr(past, "_is_user_defined", False)
    if is_chosen or past in entry.dense or not _generate_calls():
        return None
    obstacle = _obstacle(entry.plan, past, ids, kwargs.get("attention_mask"))
    if obstacle is None:
        cache = entry.plan.adopt(model, past, rows=ids.shape[0])
        for layer in cache.sink_layers:
            layer.evict_excess()
        return args, {**kwargs, "past_key_values": cache}
    entry.dense.add(past)
    if not entry.has_warned:
        entry.has_warned = True
        warn_caller(f"generate: the cache should be bounded, but grows: {obstacle}")
    return None


def _obstacle(plan: CachePlan, past: DynamicCache, ids: Any, mask: Any) -> str | None:
    """Return a clause that says why a generate() cannot stream, or None if it can."""
    if plan.counts_live:
        return (
            "a Falcon model with ALiBi streams only if called as `model(input_ids, "
            "past_key_values=kv_cache.new_cache())`."
        )
    layers: list[Any] = list(past.layers)
    if ids.shape[1] > 1 or any(getattr(layer, "record_past", False) for layer in layers):
        return (
            "assisted generation removes recent tokens, which a bounded cache cannot do. Pass "
            "`**kv_cache.inputs_for_generate(input_ids)` and no assistant."
        )
    if isinstance(mask, torch.Tensor) and not bool(mask.bool().all()):
        return (
            "padded rows cannot stream, because padding would become their sinks. Pass "
            "`**kv_cache.inputs_for_generate(input_ids)` for each row."
        )
    if any(layer.get_seq_length() != layer.keys.shape[-2] for layer in _sink_layers(plan, layers)):
        return (
            "the prompt is longer than the model's own sliding window. Pass "
            "`**kv_cache.inputs_for_generate(input_ids)`."
        )
    return None


def _sink_layers(plan: CachePlan, layers: list[Any]) -> list[Any]:
    return [layer for layer, ring in zip(layers, plan.rings, strict=True) if ring is None]


def _generate_calls() -> bool:
    """Return whether the caller is transformers' generate(), not the user's own loop."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "transformers.generation.utils"
