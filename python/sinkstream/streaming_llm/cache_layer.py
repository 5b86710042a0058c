"""Attention sinks and a window as a transformers cache: `Cache(layers=[SinkLayer, …])`.

No forward method is patched and no hook is set. Transformers models rotate keys by their absolute
index before they cache them. The window's keys always stay that way. A layer returns the sinks,
rotated towards the query by the evicted distance, followed by the window. Scores depend only on
differences between positions, so every query sees what StreamingLLM (section 3.2) defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm.rotation import KeyRotation


class SinkLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The sinks and the window of one layer.

    After each forward pass it keeps the first `start_size` tokens and the last `recent_size`
    others, as the original does. A query sees these and itself: a window of `recent_size + 1`.

    Args:
        start_size: Number of sinks, at least 0.
        recent_size: Number of other tokens to keep, at least 1.
        rotation: The model's rotary scheme; None if positions come from the columns of the cache
            (ALiBi), which are already ranks.
        rows: Batch size. All rows have the same length, without padding.
        counts_live: Report the number of live tokens as this layer's length, instead of all tokens
            seen, for models that derive their bias from it.
    """

    is_croppable = False  # evicted tokens cannot be restored

    def __init__(
        self,
        start_size: int,
        recent_size: int,
        rotation: KeyRotation | None,
        *,
        rows: int = 1,
        counts_live: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.start_size = start_size
        self.recent_size = recent_size
        self.rotation = rotation
        self.rows = rows
        self.counts_live = counts_live
        self.per_query_sinks = False  # see StreamingCache.evicting_inside
        self._clear()

    def _clear(self) -> None:
        self.seen = 0  # index of the next token
        self.renumbered = 0  # total that `renumber` has subtracted from all indices
        self.first = self.start_size  # index of the oldest token of the window
        # Window: keys and values [batch, kv_heads, live window tokens, head_dim], by ascending
        # index. They may be views of what the last forward pass received.
        self.keys: torch.Tensor = torch.empty(0)
        self.values: torch.Tensor = torch.empty(0)
        # Sinks: [batch, kv_heads, min(seen, start_size), head_dim], keys as they arrived.
        self.sink_keys = torch.empty(0)
        self.sink_values = torch.empty(0)
        self._rotatable: tuple[torch.Tensor, torch.Tensor] | None = None  # of sink_keys
        self.is_initialized = False

    @property
    def live(self) -> int:
        """Number of tokens in the cache."""
        return min(self.seen, self.start_size) + max(self.seen - self.first, 0)

    def first_of(self, index: int) -> int:
        """Return the oldest window index that is visible to the unread token at `index`."""
        return max(self.first, index - self.recent_size)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Create empty tensors of the right shape, type and device."""
        self.dtype, self.device = key_states.dtype, key_states.device

        def empty(like: torch.Tensor) -> torch.Tensor:
            return like.new_empty((*like.shape[:-2], 0, like.shape[-1]))

        self.keys, self.values = empty(key_states), empty(value_states)
        self.sink_keys, self.sink_values = empty(key_states), empty(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the keys and values of a forward pass, and return those that its queries see.

        Args:
            key_states: [batch, kv_heads, tokens, head_dim], rotated by their absolute index.
            value_states: The same for values.
            *args: Other arguments of the model's call; not used.
            **kwargs: The same.

        Returns:
            Keys and values [batch, kv_heads, sinks + window + tokens, head_dim].

        Raises:
            InvalidArgument: The batch size differs from `rows`, or the pass has too many tokens:
                the last one would see a token that should already be evicted.
        """
        self._check(key_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        fill = min(max(self.start_size - self.seen, 0), key_states.shape[-2])
        if fill:
            self.sink_keys = torch.cat([self.sink_keys, key_states[..., :fill, :]], dim=-2)
            self.sink_values = torch.cat([self.sink_values, value_states[..., :fill, :]], dim=-2)
            self._rotatable = None
        sinks, sink_values = self._sinks(key_states.shape[-2])
        self.seen += key_states.shape[-2]
        evicted = self.first_of(self.seen) - self.first
        self.first += evicted
        # Keys are replaced before values are built, so that memory is freed before it is allocated.
        keys = torch.cat([sinks, self.keys, key_states[..., fill:, :]], dim=-2)
        self.keys = keys[..., sinks.shape[-2] + evicted :, :]
        values = torch.cat([sink_values, self.values, value_states[..., fill:, :]], dim=-2)
        self.values = values[..., sinks.shape[-2] + evicted :, :]
        return keys, values

    def _check(self, key_states: torch.Tensor) -> None:
        rows, tokens = key_states.shape[0], key_states.shape[-2]
        if rows != self.rows:
            raise InvalidArgument(
                f"forward: the batch must have as many rows as the cache, {self.rows}, but has "
                f"{rows}. `new_cache(batch={rows})` creates one for rows of equal length. Padded "
                "rows cannot stream, because padding would become their sinks.",
                param="batch",
            )
        if self.first_of(self.seen + tokens - 1) > self.first and not self.per_query_sinks:
            raise InvalidArgument(
                "forward: a forward pass must not evict tokens that its own queries see, but "
                f"reading {tokens} tokens into a cache with {self.live} live ones would: the cache "
                f"keeps only {self.start_size + self.recent_size}. Read the tokens with "
                "`kv_cache.read(input_ids, cache)`, pass "
                "`**kv_cache.inputs_for_generate(input_ids, cache)` to generate(), or make room "
                "first with `kv_cache.evict_for_space(cache, tokens)`.",
                param="input_ids",
            )

    def _sinks(self, queries: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sinks as the next queries see them: one copy, or one per query."""
        if self.rotation is None or (self.first == self.start_size and not self.per_query_sinks):
            return self.sink_keys, self.sink_values
        if self._rotatable is None:
            self._rotatable = self.rotation.partners(self.sink_keys)
        wide, partner = self._rotatable
        if not self.per_query_sinks:
            cos, sin = self.rotation.table((self.first - self.start_size,), wide)
            rotated = torch.addcmul(wide * cos[0], partner, sin[0])
            return rotated.to(self.sink_keys.dtype), self.sink_values
        indices = range(self.seen, self.seen + queries)
        distances = [self.first_of(index) - self.start_size for index in indices]
        cos, sin = self.rotation.table(distances, wide)  # [queries, head_dim]
        rotated = torch.addcmul(
            wide[:, :, None] * cos[:, None, :], partner[:, :, None], sin[:, None, :]
        )  # [batch, kv_heads, queries, sinks, head_dim]
        values = self.sink_values[:, :, None].expand(-1, -1, queries, -1, -1)
        return rotated.to(self.sink_keys.dtype).flatten(2, 3), values.flatten(2, 3)

    def evict_for_space(self, count: int) -> None:
        """Evict the oldest window tokens to make room for `count` new ones."""
        if self.live + count > self.start_size + self.recent_size:
            self._drop(self.seen - max(self.recent_size - count, 0) - self.first)

    def evict_excess(self) -> None:
        """Evict all but the last `recent_size` window tokens, as after a forward pass."""
        self._drop(self.first_of(self.seen) - self.first)

    def _drop(self, count: int) -> None:
        if count > 0:
            self.keys, self.values = self.keys[..., count:, :], self.values[..., count:, :]
            self.first += count

    def evict_range(self, start: int, end: int) -> None:
        """Evict the live tokens with ranks [start, end).

        Window tokens older than the cut move up by its length; each key is rotated once.
        """
        if start == end:
            return
        older, younger = start - self.start_size, end - self.start_size
        moved = self.keys[..., :older, :]
        if self.rotation is not None:
            moved = self.rotation.rotate(moved, end - start)
        self.keys = torch.cat([moved, self.keys[..., younger:, :]], dim=-2)
        self.values = torch.cat(
            [self.values[..., :older, :], self.values[..., younger:, :]], dim=-2
        )
        self.first += end - start

    def renumber(self) -> None:
        """Renumber the live tokens as if nothing had been evicted: rotate the window back."""
        distance = self.first - self.start_size
        if self.rotation is not None and distance:
            self.keys = self.rotation.rotate(self.keys, -distance)
        self.seen -= distance
        self.first -= distance
        self.renumbered += distance

    def adopt(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start with the keys and values of all tokens so far, from index 0; evict nothing.

        Raises:
            InvalidArgument: The batch size differs from `rows`.
        """
        if keys.shape[0] != self.rows:
            self._check(keys[..., :0, :])
        sinks = min(self.start_size, keys.shape[-2])
        self.lazy_initialization(keys, values)
        self.sink_keys, self.keys = keys[..., :sinks, :], keys[..., sinks:, :]
        self.sink_values, self.values = values[..., :sinks, :], values[..., sinks:, :]
        self.seen = keys.shape[-2]

    def get_seq_length(self) -> int:
        """Return the index of the next token, from which models derive positions.

        With `counts_live`, it is the number of live tokens.
        """
        return self.live if self.counts_live else self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of mask columns, and the index of the first.

        The live tokens are treated as the tokens immediately before the query, so all of them are
        visible.
        """
        return self.live + query_length, self.get_seq_length() - self.live

    def get_max_length(self) -> int:
        """Return -1: a stream has no end."""
        return -1

    def reset(self) -> None:
        """Remove all tokens."""
        self._clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to remove the last tokens.

        Raises:
            InvalidArgument: `tokens_to_remove` is not 0.
        """
        if tokens_to_remove != 0:
            raise InvalidArgument(
                f"crop: `tokens_to_remove` must be 0, but is {tokens_to_remove}. Evicted tokens "
                "cannot be restored. Use another cache for assisted generation.",
                param="tokens_to_remove",
            )

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the rows, for beam search."""
        self._for_each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self._for_each(lambda x: x.repeat_interleave(repeats, dim=0))
        self.rows *= repeats

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows."""
        self._for_each(lambda x: x[indices, ...])
        self.rows = len(indices)

    def offload(self) -> None:
        """Move everything to CPU memory."""
        self._for_each(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move everything back to the device."""
        self._for_each(lambda x: x.to(self.device, non_blocking=True))

    def _for_each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if self.is_initialized:
            self.keys, self.values = change(self.keys), change(self.values)
            self.sink_keys, self.sink_values = change(self.sink_keys), change(self.sink_values)
            self._rotatable = None


class StreamingCache(Cache):
    """The cache of one stream; pass it to a model or to generate() as `past_key_values`.

    Created by `StartRecentKVCache.new_cache`. A layer with a native sliding window that is no wider
    than this cache's window uses transformers' own ring without sinks, as in training.
    """

    layers: list[SinkLayer | DynamicSlidingWindowLayer]  # type: ignore[assignment]

    def __init__(self, layers: list[SinkLayer | DynamicSlidingWindowLayer]) -> None:
        super().__init__(layers=list(layers))
        self._checked_at: int | None = None  # see mark_as_checked

    def mark_as_checked(self) -> None:
        """Record that the next input of generate() has no padding; valid until tokens are read."""
        self._checked_at = self.seen_tokens

    @property
    def _is_user_defined(self) -> bool:
        return True

    @_is_user_defined.setter
    def _is_user_defined(self, value: bool) -> None:
        # Before it runs anything, generate() marks a cache that was passed to it. The cache learns
        # nothing else about the call: layers receive keys and values, but not the mask.
        self._check_generate()

    def _check_generate(self) -> None:
        if self.rows > 1 and self._checked_at != self.seen_tokens:
            raise InvalidArgument(
                "generate: `past_key_values` must have one row, or rows that were checked for "
                f"padding, but has {self.rows} that were not. Pass "
                "`**kv_cache.inputs_for_generate(input_ids, cache, attention_mask=mask)` to "
                "generate(). Padded rows cannot stream, because padding would become their sinks.",
                param="past_key_values",
            )

    @property
    def sink_layers(self) -> list[SinkLayer]:
        """The layers that have sinks."""
        return [layer for layer in self.layers if isinstance(layer, SinkLayer)]

    @property
    def rows(self) -> int:
        """Batch size of the layers that have sinks; 1 if there are none."""
        return max((layer.rows for layer in self.sink_layers), default=1)

    @property
    def seen_tokens(self) -> int:
        """Number of tokens read so far."""
        layer = self.layers[0]
        if isinstance(layer, SinkLayer):
            return layer.seen + layer.renumbered
        return int(layer.get_seq_length())

    @property
    def live_tokens(self) -> int:
        """Number of tokens in the cache; in its widest layer if layers differ."""
        return max(
            # A ring keeps one token fewer than a query sees.
            layer.live
            if isinstance(layer, SinkLayer)
            else min(self.seen_tokens, layer.sliding_window - 1)
            for layer in self.layers
        )

    @property
    def evicted_tokens(self) -> int:
        """Number of tokens that have left the cache."""
        return self.seen_tokens - self.live_tokens

    def renumber_if_far(self) -> None:
        """Renumber the live tokens when the number of evicted tokens reaches the size of the cache.

        Transformers computes angles in float32, so their error grows with the index. Renumbering
        rotates each key at most once, which rounds 16-bit keys once more. A cache of such keys
        therefore waits for at least 65,536 evicted tokens: there, the error of the angles
        (65,536 × 6e-8 rad) is as large as that of the rounding. A caller that passes its own
        positions, as generate() does, must read them from `get_seq_length` afterwards.
        """
        if len(self.sink_layers) < len(self.layers):
            return  # a ring's keys share these indices, and cannot be renumbered
        layer = self.sink_layers[0]
        if layer.rotation is None or not layer.is_initialized:
            return
        far = layer.start_size + layer.recent_size
        if layer.dtype.itemsize < 4:
            far = max(far, 65_536)
        if layer.first - layer.start_size >= far:
            for each in self.sink_layers:
                each.renumber()

    @contextmanager
    def evicting_inside(self) -> Iterator[None]:
        """Let one forward pass evict between its own tokens.

        Each layer then returns one copy of the sinks for every query of the pass, rotated
        towards that query; `reading.mask_of_chunk` hides the copies of the other queries.
        """
        for layer in self.sink_layers:
            layer.per_query_sinks = True
        try:
            yield
        finally:
            for layer in self.sink_layers:
                layer.per_query_sinks = False


class RankedCache(StreamingCache):
    """The cache of a model that derives its bias from the length of the cache (Falcon, ALiBi)."""

    def _check_generate(self) -> None:
        raise InvalidArgument(
            "generate: a Falcon model with ALiBi must be called as `model(input_ids, "
            "past_key_values=cache)`, but is called by generate(). The model builds its bias from "
            "the attention mask, which generate() keeps extending although the cache does not "
            "grow.",
            param="past_key_values",
        )
