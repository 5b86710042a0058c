"""The models that can stream, and the layers of their caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.streaming_llm.cache_layer import RankedCache, SinkLayer, StreamingCache
from sinkstream.streaming_llm.rotation import KeyRotation

FAMILIES = ("falcon", "gpt_neox", "llama", "mistral", "mpt", "qwen2", "qwen3")

# These look up a vector for every absolute position; there is none past the trained length.
LEARNED_POSITIONS = frozenset(
    {"biogpt", "ctrl", "gpt2", "gpt_bigcode", "gpt_neo", "imagegpt", "openai-gpt", "opt", "xglm"}
)

# The frequencies of these depend on the length of the text, which is unbounded in a stream.
LENGTH_DEPENDENT_ROTARY = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True)
class CachePlan:
    """How to create the caches of one model."""

    start_size: int
    recent_size: int
    is_rotary: bool  # otherwise ALiBi, whose bias depends on the column
    rings: tuple[int | None, ...]  # per layer: its native window, or None for sinks
    counts_live: bool  # the model takes the cache's length as its number of columns
    evicts_inside: bool  # one forward pass may read more tokens than fit (see read_chunks.py)

    def new_cache(self, model: Any, rows: int) -> StreamingCache:
        """Return an empty cache for the model, for `rows` rows of equal length."""
        # Read again for each cache: casting the model also rounds its frequencies, and the sinks
        # must be rotated by those that its forward method uses.
        rotation = KeyRotation(model.base_model.rotary_emb.inv_freq) if self.is_rotary else None
        kind = RankedCache if self.counts_live else StreamingCache
        return kind(
            [
                SinkLayer(
                    self.start_size,
                    self.recent_size,
                    rotation,
                    rows=rows,
                    counts_live=self.counts_live,
                )
                if ring is None
                else DynamicSlidingWindowLayer(ring)
                for ring in self.rings
            ]
        )

    def adopt(self, model: Any, past: Cache, *, rows: int = 1) -> StreamingCache:
        """Return a cache for the model with all the tokens that its own cache holds.

        Nothing is evicted yet; the caller does that.

        Raises:
            InvalidArgument: `past` belongs to a different model, or it has lost tokens.
        """
        every: list[Any] = list(past.layers)
        theirs = [layer for layer in every if layer.is_initialized]
        cache = self.new_cache(model, rows)
        if not theirs:
            return cache
        if len(theirs) != len(cache.layers):
            raise InvalidArgument(
                f"StartRecentKVCache: `past` must have the model's {len(cache.layers)} layers, but "
                f"has {len(theirs)}.",
                param="past",
            )
        for index, (mine, layer) in enumerate(zip(cache.layers, theirs, strict=True)):
            if not isinstance(mine, SinkLayer):
                cache.layers[index] = layer
            elif layer.get_seq_length() != layer.keys.shape[-2]:
                raise InvalidArgument(
                    "StartRecentKVCache: `past` must hold every token so far, but layer "
                    f"{index} evicted some. Start with `past_key_values=kv_cache.new_cache()`.",
                    param="past",
                )
            else:
                mine.adopt(layer.keys, layer.values)
        return cache


def plan_cache(where: str, model: Any, start_size: int, recent_size: int) -> CachePlan:
    """Return how the cache of a transformers model streams.

    Raises:
        TypeError: `model` is not a transformers model.
        InvalidArgument: It cannot stream, or not with these sizes; the message says why.
    """
    family = model_family(where, model)
    config = model.config
    window = recent_size + 1  # the current token included
    has_alibi = family == "mpt" or (family == "falcon" and config.alibi)
    if not has_alibi:
        _check_rotary(where, model)
    if family == "mpt":
        _check_mpt(where, config, start_size + window)
    elif not has_alibi and start_size + window > config.max_position_embeddings:
        warn_caller(
            f"{where}: the cache should not exceed the model's trained length of "
            f"{config.max_position_embeddings} tokens, but holds {start_size + window}."
        )
    if model.can_generate() and model.generation_config.use_cache is False:
        warn_caller(
            f"{where}: generate() must be called with use_cache=True, but this model's generation "
            "config says False. `**kv_cache.inputs_for_generate(input_ids)` sets it."
        )
    rings = tuple(
        _ring(where, width, start_size, window) for width in _native_windows(family, config)
    )
    # One mask serves all layers of a forward pass, so all layers must be of one kind.
    masks_itself = config._attn_implementation in ("eager", "sdpa") and not any(rings)
    return CachePlan(
        start_size=start_size,
        recent_size=recent_size,
        is_rotary=not has_alibi,
        rings=rings,
        counts_live=family == "falcon" and has_alibi,
        evicts_inside=not has_alibi and masks_itself,
    )


def model_family(where: str, model: Any) -> str:
    """Return the model_type of a model, if it can stream."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"{where}: `model` must be a transformers model, but is of type {type(model).__name__}."
        )
    family = str(model.config.model_type)
    if family in LEARNED_POSITIONS:
        raise InvalidArgument(
            f"{where}: `model` must have rotary positions or ALiBi, but is of model_type "
            f'"{family}", which has learned absolute positions. Such a model cannot stream.',
            param="model",
        )
    if family not in FAMILIES:
        raise InvalidArgument(
            f'{where}: `model` has model_type "{family}"; the supported ones are '
            f"{', '.join(FAMILIES)}.",
            param="model",
        )
    return family


def _check_rotary(where: str, model: PreTrainedModel) -> None:
    rotary: Any = model.base_model.rotary_emb
    if rotary.rope_type in LENGTH_DEPENDENT_ROTARY:
        raise InvalidArgument(
            f"{where}: `model` must have fixed rotary frequencies, but has rope_type "
            f'"{rotary.rope_type}", whose frequencies depend on the length of the text.',
            param="model",
        )


def _check_mpt(where: str, config: Any, capacity: int) -> None:
    if not config.attn_config.alibi:
        raise InvalidArgument(
            f"{where}: `model` must have ALiBi, but its attn_config has alibi=False.",
            param="model",
        )
    if capacity > config.max_seq_len:
        raise InvalidArgument(
            f"{where}: `start_size + recent_size` must be below the model's max_seq_len, "
            f"{config.max_seq_len}, but is {capacity - 1}. MPT has no bias for more columns.",
            param="recent_size",
        )


def _native_windows(family: str, config: Any) -> list[int | None]:
    if family == "mistral":
        return [config.sliding_window] * config.num_hidden_layers
    if family in ("qwen2", "qwen3"):
        return [
            config.sliding_window if kind == "sliding_attention" else None
            for kind in config.layer_types
        ]
    return [None] * config.num_hidden_layers


def _ring(where: str, native: int | None, start_size: int, window: int) -> int | None:
    """Return the width of a layer's native ring, or None if it uses sinks and our window."""
    if native is None or native >= start_size + window:
        return None
    if native <= window:
        return native
    raise InvalidArgument(
        f"{where}: `start_size + recent_size + 1` must be at most {native}, the model's own "
        f"sliding window, or `recent_size + 1` must be at least {native}, but they are "
        f"{start_size + window} and {window}. In between, the model's mask would hide sinks.",
        param="recent_size",
    )
