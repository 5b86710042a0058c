"""`StartRecentKVCache`: sinks and a window, under the original's name."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import as_int
from sinkstream.streaming_llm import enabled
from sinkstream.streaming_llm.cache_layer import SinkLayer, StreamingCache
from sinkstream.streaming_llm.families import CachePlan, plan_cache
from sinkstream.streaming_llm.read_chunks import read

LegacyCache = tuple[tuple[torch.Tensor, torch.Tensor], ...]

_LARGEST = 2**31 - 1


class StartRecentKVCache:
    """Keeps the first `start_size` tokens of a cache and the last `recent_size` others.

    The object is called with the cache of a stream, `past`, after each forward pass; its methods
    that evict tokens take `past`, too. `past` is None or one of the following:

    - a `StreamingCache` (from `new_cache`), changed in place: positions are always correct;
    - legacy tuples, `((key, value), …)` per layer: only sliced, as in the original, without
      changing the positions of keys;
    - the cache that a model returned when called without one (a `DynamicCache`). Its tokens move
      into a new `StreamingCache`, which is returned. The original's loops therefore run unchanged:
      `past = kv_cache(model(ids, past_key_values=past).past_key_values)` after each token, and
      `past = kv_cache.evict_for_space(past, len(prompt) + max_new_tokens)` before each turn.

    Args:
        start_size: Number of sinks, at least 0.
        recent_size: Number of other tokens to keep, at least 1.
        k_seq_dim: The token dimension of a legacy key, 1 to 3.
        v_seq_dim: The same for a value.
        model: The model whose caches it creates; `enable_streaming_llm` passes it. If None, the
            only enabled model.

    Example:
        >>> kv_cache = enable_streaming_llm(model, start_size=4, recent_size=2000)
        >>> inputs = kv_cache.inputs_for_generate(tokenizer(text, return_tensors="pt").input_ids)
        >>> model.generate(**inputs, max_new_tokens=100_000, streamer=TextStreamer(tokenizer))
    """

    def __init__(
        self,
        start_size: int = 4,
        recent_size: int = 512,
        k_seq_dim: int = 2,
        v_seq_dim: int = 2,
        *,
        model: Any = None,
    ) -> None:
        where = "StartRecentKVCache"
        self.start_size = as_int(where, "start_size", start_size, 0, _LARGEST)
        self.recent_size = as_int(where, "recent_size", recent_size, 1, _LARGEST)
        self.k_seq_dim = as_int(where, "k_seq_dim", k_seq_dim, 1, 3)
        self.v_seq_dim = as_int(where, "v_seq_dim", v_seq_dim, 1, 3)
        self.cache_size = self.start_size + self.recent_size
        self._own_model = model
        self._plan: tuple[Any, CachePlan] | None = None
        if model is not None:
            self._plan_of("enable_streaming_llm", model)

    def __repr__(self) -> str:
        return f"StartRecentKVCache(start_size={self.start_size}, recent_size={self.recent_size})"

    # ---- the original's three operations ----

    def __call__(self, past: Any) -> Any:
        """Evict the excess tokens; called after a forward pass, as in the original's loops.

        Args:
            past: None, legacy tuples, or a cache (see the class).

        Returns:
            None, the sliced tuples, or a `StreamingCache`.
        """
        if past is None:
            return None
        if isinstance(past, Cache):
            cache = self._streaming(past)
            for layer in cache.sink_layers:
                layer.evict_excess()  # of an adopted cache; ours evicts in every forward pass
            cache.renumber_if_far()
            return cache
        length = self._legacy_length(past)
        if length <= self.cache_size:
            return past
        return self._cut(past, self.start_size, length - self.recent_size)

    def evict_for_space(self, past: Any, num_coming: int) -> Any:
        """Evict the oldest window tokens before a turn, to make room for `num_coming` new ones.

        It may evict the entire window, but never a sink. The next forward pass can then read up to
        `recent_size + 1` tokens at once, if `num_coming` covers them.

        Args:
            past: None, legacy tuples, or a cache (see the class).
            num_coming: The tokens of the prompt, plus those of the reply unless `kv_cache(past)` is
                called after each of them.

        Returns:
            None, the sliced tuples, or a `StreamingCache`.

        Raises:
            InvalidArgument: `num_coming` is negative, or the model is not enabled.
            TypeError: An argument has the wrong type.
        """
        count = as_int("evict_for_space", "num_coming", num_coming, 0, _LARGEST)
        if past is None:
            return None
        if isinstance(past, Cache):
            cache = self._streaming(past)
            for layer in cache.sink_layers:
                layer.evict_for_space(count)
            cache.renumber_if_far()
            return cache
        length = self._legacy_length(past)
        if length + count <= self.cache_size:
            return past
        kept = max(self.recent_size - count, 0)
        return self._cut(past, min(self.start_size, length), max(length - kept, 0))

    def evict_range(self, past: Any, start: int, end: int) -> Any:
        """Evict the tokens with ranks [start, end).

        In a cache, `start` must not be a sink. Window tokens older than the cut move up; each key
        is rotated once. Ranks count all tokens that `past` holds. From a cache that a model
        returned, the range is evicted first, and then the oldest tokens that exceed the bound.

        Args:
            past: None, legacy tuples, or a cache (see the class).
            start: Rank of the first token to evict.
            end: Rank of the first token after these.

        Returns:
            None, the sliced tuples, or a `StreamingCache`.

        Raises:
            InvalidArgument: A rank is out of range, a layer has no sinks, or the model is not
                enabled.
            TypeError: An argument has the wrong type.
        """
        if past is None:
            return None
        if isinstance(past, Cache):
            return self._evict_range(self._streaming(past), start, end)
        length = self._legacy_length(past)
        start = as_int("evict_range", "start", start, 0, length)
        end = as_int("evict_range", "end", end, start, length)
        return self._cut(past, start, end)

    def _evict_range(self, cache: StreamingCache, start: int, end: int) -> StreamingCache:
        length = cache.live_tokens
        start = as_int("evict_range", "start", start, min(self.start_size, length), length)
        end = as_int("evict_range", "end", end, start, length)
        if any(not isinstance(layer, SinkLayer) for layer in cache.layers):
            raise InvalidArgument(
                "evict_range: every layer must have sinks, but this model has layers with a native "
                "sliding window, where ranks differ.",
                param="past",
            )
        for layer in cache.sink_layers:
            layer.evict_range(start, end)
            layer.evict_excess()
        cache.renumber_if_far()
        return cache

    def _legacy_length(self, past: Any) -> int:
        if not _is_legacy(past):
            raise TypeError(
                "StartRecentKVCache: `past` must be a cache, pairs of tensors or None, but is of "
                f"type {type(past).__name__}."
            )
        return int(past[0][0].shape[self.k_seq_dim])

    def _cut(self, past: Any, start: int, end: int) -> LegacyCache:
        """Return legacy tuples without the tokens [start, end)."""

        def cut(x: torch.Tensor, dim: int) -> torch.Tensor:
            return torch.cat([x.narrow(dim, 0, start), x.narrow(dim, end, x.shape[dim] - end)], dim)

        return tuple((cut(k, self.k_seq_dim), cut(v, self.v_seq_dim)) for k, v in past)

    # ---- streaming with today's transformers ----

    def new_cache(self, batch: int = 1) -> StreamingCache:
        """Return an empty cache, to pass as `past_key_values` to the model or to generate().

        Its sinks are rotated by the model's current frequencies: cast the model to its final dtype
        before this call.

        Rows must not be padded, because padding would become their sinks. generate() refuses more
        than one row unless `inputs_for_generate` has checked the mask. Two mistakes cannot be
        detected and produce garbage: calling `model(…)` directly with a padded mask, and calling
        generate() with a single padded row.

        Args:
            batch: Number of rows, of equal length and without padding. Each beam is a row.

        Raises:
            InvalidArgument: `batch` is out of range, or the model is not enabled.
        """
        rows = as_int("new_cache", "batch", batch, 1, _LARGEST)
        model, plan = self._planned("new_cache")
        return plan.new_cache(model, rows)

    def read(
        self,
        input_ids: torch.Tensor,
        past: StreamingCache | None = None,
        *,
        logits_to_keep: int = 1,
    ) -> tuple[torch.Tensor, StreamingCache]:
        """Read any number of tokens, with the same result as one token at a time.

        Args:
            input_ids: int64 [batch, tokens], at least one token, without padding.
            past: From `new_cache`, changed in place; or None for a new one.
            logits_to_keep: Number of tokens at the end whose logits are returned; 0 means all.

        Returns:
            Logits [batch, kept tokens, vocab], and the cache.

        Raises:
            InvalidArgument: An argument is out of range, or the model is not enabled.
            TypeError: An argument has the wrong type.
        """
        _check_ids("read", input_ids)
        kept = as_int("read", "logits_to_keep", logits_to_keep, 0, _LARGEST)
        model, plan = self._planned("read")
        cache = plan.new_cache(model, input_ids.shape[0]) if past is None else past
        rows: list[torch.Tensor] = []
        with torch.no_grad():
            for output in read(model, plan, cache, input_ids):
                rows.append(output.logits)
                if kept:
                    rows = [torch.cat(rows, dim=1)[:, -kept:]]
        return torch.cat(rows, dim=1), cache

    def inputs_for_generate(
        self,
        input_ids: torch.Tensor,
        past: StreamingCache | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Read all tokens except the last; return the arguments for generate() to continue.

        Needed for a prompt longer than the cache, for more than one row, and for every turn after
        the first: `model.generate(**kv_cache.inputs_for_generate(input_ids, cache), …)`. The output
        of generate() then begins with the last token of `input_ids`. The model has not read the
        output's last token: begin the `input_ids` of the next turn with it.

        Args:
            input_ids: int64 [batch, tokens], only the new tokens.
            past: From `new_cache`, changed in place; or None for a new one. For beam search, it
                has several rows for each row of `input_ids`, and each reads that row.
            attention_mask: The tokenizer's mask, which must be all ones. Required for more than one
                row.

        Raises:
            InvalidArgument: There are no tokens, the mask is missing or has zeros, or the model is
                not enabled.
            TypeError: `input_ids` is not a tensor.
        """
        _check_ids("inputs_for_generate", input_ids)
        if attention_mask is None and len(input_ids) > 1:
            raise InvalidArgument(
                "inputs_for_generate: `attention_mask` must be given for more than one row, but is "
                f"None for {len(input_ids)}. A tokenizer returns it with the ids. Padded rows "
                "cannot stream.",
                param="attention_mask",
            )
        if attention_mask is not None and not bool(attention_mask.bool().all()):
            raise InvalidArgument(
                "inputs_for_generate: `attention_mask` must be all ones, but has zeros. Padded "
                "rows cannot stream, because padding would become their sinks. Stream them one by "
                "one.",
                param="attention_mask",
            )
        if past is None:
            past = self.new_cache(input_ids.shape[0])
        if input_ids.shape[1] > 1:
            # generate() repeats rows for beams in the same order.
            beams = max(past.rows // len(input_ids), 1)
            self.read(input_ids[:, :-1].repeat_interleave(beams, dim=0), past)
        last = input_ids[:, -1:]
        # generate() derives positions from the mask, and slices the ids if both have one length.
        past.renumber_if_far()
        past.mark_as_checked()
        length = past.get_seq_length() + 1
        mask = torch.ones(len(last), length, dtype=torch.long, device=last.device)
        return {
            "input_ids": last,
            "attention_mask": mask,
            "past_key_values": past,
            "use_cache": True,  # MPT's checkpoints say False, which generate() would follow
        }

    def _streaming(self, past: Cache) -> StreamingCache:
        """Return one of our caches as it is; move a model's own tokens into a new one."""
        if isinstance(past, StreamingCache):
            return past
        model, plan = self._planned("StartRecentKVCache")
        return plan.adopt(model, past)

    def _planned(self, where: str) -> tuple[Any, CachePlan]:
        model = enabled.only_one(where) if self._own_model is None else self._own_model
        if not enabled.is_enabled(model):
            raise InvalidArgument(
                f"{where}: the model must be enabled, but was disabled. "
                "`enable_streaming_llm(model, …)` enables it again.",
                param="model",
            )
        return model, self._plan_of(where, model)

    def _plan_of(self, where: str, model: Any) -> CachePlan:
        if self._plan is None or self._plan[0] is not model:
            self._plan = model, plan_cache(where, model, self.start_size, self.recent_size)
        return self._plan[1]


def _check_ids(where: str, ids: torch.Tensor) -> None:
    if not isinstance(ids, torch.Tensor):
        raise TypeError(
            f"{where}: `input_ids` must be a tensor, but is of type {type(ids).__name__}."
        )
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise InvalidArgument(
            f"{where}: `input_ids` must have the shape [batch, tokens] with at least one token, "
            f"but has {list(ids.shape)}.",
            param="input_ids",
        )


def _is_legacy(past: Any) -> bool:
    """Return whether `past` looks like ((key, value), …), the original's form of a cache."""
    pairs = isinstance(past, (list, tuple)) and past and all(_is_pair(pair) for pair in past)
    return bool(pairs)


def _is_pair(pair: Any) -> bool:
    return (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and all(isinstance(x, torch.Tensor) for x in pair)
    )
