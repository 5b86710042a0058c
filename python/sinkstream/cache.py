"""A model's memory: its `Capacity`, and the `Cache` that `Model.forward` appends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkstream import _core
from sinkstream.errors import InvalidArgument
from sinkstream.observe.notebook import cache_bar, counted, human_bytes, summary
from sinkstream.request.checks import as_int, as_native_int
from sinkstream.streams.closing import NeverCopied

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory of a model, all allocated at load, and what fits into it."""

    sinks: int
    """S, the number of tokens at the start of the text that always stay in the cache."""
    window: int
    """W: how many of the most recent tokens stay in the cache, including the current one."""
    max_sequences: int
    """Number of streams that can run at the same time."""
    bytes_per_token: int
    """Size of the keys and values of one live token in all layers."""
    bytes_per_sequence: int
    """Size of the cache of one endless stream: whole pages, in each layer at most two more than the
    live tokens fill, and its states."""
    cache_bytes: int
    """Size of the caches of all sequences together."""
    weight_bytes: int
    """Size of the weights, in the file's block format, or in the one that `quantize` gives."""
    scratch_bytes: int
    """Size of the activations of one step, and of the logits of its sequences."""
    state_bytes_per_sequence: int = 0
    """The part of `bytes_per_sequence` that holds the states of layers without keys; 0 if there are
    no such layers."""
    weight_bytes_per_token: int = 0
    """The part of `weight_bytes` that the forward pass of one token reads: all but the embedding,
    unless the logits use it, and but the experts that the token does not choose."""

    def __str__(self) -> str:
        """Return the sizes in human-readable units."""
        total = self.weight_bytes + self.cache_bytes + self.scratch_bytes
        return (
            f"{human_bytes(total)}: {human_bytes(self.weight_bytes)} of weights "
            f"({human_bytes(self.weight_bytes_per_token)} read per token), "
            f"{human_bytes(self.cache_bytes)} of cache for "
            f"{counted(self.max_sequences, 'sequence')} of "
            f"{self.sinks} sinks + {self.window} window, "
            f"{human_bytes(self.scratch_bytes)} of scratch"
        )

    def _repr_html_(self) -> str:
        return summary("Capacity", [str(self)])

    @property
    def tokens(self) -> int:
        """Return S + W, the most tokens that the model can attend to."""
        return self.sinks + self.window


class Cache(NeverCopied):
    """Keys and values for `Model.forward`: one sequence for each row of a batch.

    Created by `Model.new_cache`. Its memory is separate from `Model.capacity`.
    """

    _instead = "Use `copy()`."

    def __init__(
        self, native: _core.ForwardCache, model: _core.Model, sinks: int, window: int
    ) -> None:
        self._native = native
        self._model = model
        self._sinks = sinks
        self._window = window

    def __repr__(self) -> str:
        return (
            f"<sinkstream.Cache {self._rows()}, {self.live} live tokens "
            f"each, {self.evicted} evicted, {self._sinks} sinks + {self._window} window, "
            f"{human_bytes(self.nbytes)}>"
        )

    def _repr_html_(self) -> str:
        facts = [self._rows(), human_bytes(self.nbytes)]
        bar = cache_bar(self._sinks, self._window, self.live, self.evicted)
        return summary("Cache", facts, bar)

    def _rows(self) -> str:
        return counted(self.batch, "row")

    @property
    def batch(self) -> int:
        """Return the number of rows."""
        return self._native.batch

    @property
    def length(self) -> int:
        """Return how many tokens each row has processed."""
        return self._native.length

    @property
    def live(self) -> int:
        """Return how many tokens of each row are in the cache, at most S + W."""
        return self._native.live

    @property
    def evicted(self) -> int:
        """Return how many tokens of each row have left the cache."""
        return self._native.evicted

    @property
    def nbytes(self) -> int:
        """Return the size of the cache in bytes; it never grows.

        On a GPU, a cache may reuse the memory of a larger cache that was freed, and so hold up to
        twice what it needs.
        """
        return self._native.bytes

    def copy(self) -> Cache:
        """Return an independent cache with the same tokens.

        Raises:
            CapacityError: The system cannot provide the memory.
            SessionBusy: A forward pass is using the cache.
        """
        return Cache(self._model.copy_of(self._native), self._model, self._sinks, self._window)

    def evict_for_space(self, n: int) -> None:
        """Immediately evict as many tokens as the next `n` need, as StreamingLLM's code does.

        Does nothing if `n` more tokens already fit. Memory is bounded without this call; it
        only changes what the first of these `n` tokens attend to. Applies to all rows.

        Args:
            n: In [0, W − 1].

        Raises:
            InvalidArgument: `n` is out of range.
            SessionBusy: A forward pass is using the cache.
        """
        self._native.evict_for_space(as_native_int("evict_for_space", "n", n))

    def evict_range(self, start: int, end: int) -> None:
        """Remove tokens from the middle of the window, in all rows; older tokens close the gap.

        The keys of moved tokens are rotated by the length of the gap, and rounded once more.

        Args:
            start: The first token to remove, by its rank among the tokens that the next token
                would see: the sinks from 0, then the window from its oldest token. At least S.
            end: The rank after the last token to remove, greater than `start`.

        Raises:
            InvalidArgument: The range is not inside the window.
            SessionBusy: A forward pass is using the cache.
            EngineDead: The model is closed, or its engine has failed.
        """
        self._model.evict_range(
            self._native,
            as_native_int("evict_range", "start", start),
            as_native_int("evict_range", "end", end),
        )


def new_cache(
    model: _core.Model, batch: int, default: tuple[int, int], sinks: int | None, window: int | None
) -> Cache:
    """Return an empty cache; see `Model.new_cache`. `default` is the model's S and W."""
    most = 1 << 28
    s = default[0] if sinks is None else as_int("new_cache", "sinks", sinks, 0, most)
    w = default[1] if window is None else as_int("new_cache", "window", window, 1, most)
    native = model.new_cache(as_int("new_cache", "batch", batch, 1, 1 << 16), s, w)
    return Cache(native, model, s, w)


def skip_to(cache: Cache, begin: int) -> None:
    """Count tokens up to the index `begin` as read and evicted, except for the sinks."""
    cache._native.jump(begin)


def forward(
    model: _core.Model, vocab_size: int, ids: torch.Tensor, cache: Cache | None
) -> torch.Tensor:
    """Compute the logits of all given tokens; see `Model.forward`."""
    import torch  # takes a second; streaming does not need it

    if not isinstance(ids, torch.Tensor):
        raise TypeError(
            f"forward: `ids` must be a torch.Tensor, but is of type {type(ids).__name__}."
        )
    if ids.dtype != torch.int64 or ids.device.type != "cpu":
        raise TypeError(
            "forward: `ids` must be an int64 tensor on the CPU, but is of type "
            f"{ids.dtype} on {ids.device}."
        )
    if ids.ndim != 2 or len(ids) < 1:
        raise InvalidArgument(
            "forward: `ids` must have shape [batch, tokens] with a batch of at least 1, but "
            f"has {list(ids.shape)}.",
            param="ids",
        )
    # The core reads and writes the tensors' own memory.
    lent, native = ids.contiguous().numpy(), None if cache is None else cache._native
    model.check_forward(lent, native)  # before the logits are allocated
    logits = torch.empty(*ids.shape, vocab_size, dtype=torch.float32, device="cpu")
    model.forward(lent, logits.numpy(), native)
    return logits
