"""What a model holds in memory: its capacity, and the caches that `Model.forward` appends to."""

from __future__ import annotations

from dataclasses import dataclass

from sinkstream import _core
from sinkstream.request.checks import as_int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory that a model has taken, all of it at load, and what fits into it."""

    sinks: int
    """S: the first tokens of a text, which stay in the cache for ever."""
    window: int
    """W: the last tokens, the current one included."""
    max_sequences: int
    """Streams that run at the same time."""
    bytes_per_token: int
    """Keys and values of one live token in all layers."""
    bytes_per_sequence: int
    """What an endless stream holds: whole pages, for sinks, window and one page of margin."""
    cache_bytes: int
    """All sequences together."""
    weight_bytes: int
    scratch_bytes: int
    """Activations of one step, and the logits of all its sequences."""

    @property
    def tokens(self) -> int:
        """Return S + W, the most tokens that the model sees at once."""
        return self.sinks + self.window


class Cache:
    """Keys and values for `Model.forward`: one sequence for each row of a batch.

    Made by `Model.new_cache`; its memory is its own, beside `Model.capacity`.
    """

    def __init__(self, native: _core.ForwardCache, model: _core.Model) -> None:
        self._native = native
        self._model = model

    @property
    def batch(self) -> int:
        """Return the rows that it was made for."""
        return self._native.batch

    @property
    def length(self) -> int:
        """Return the tokens that each row has seen."""
        return self._native.length

    @property
    def live(self) -> int:
        """Return the tokens of each row that are in the cache, at most S + W."""
        return self._native.live

    @property
    def evicted(self) -> int:
        """Return the tokens of each row that have left the cache."""
        return self._native.evicted

    @property
    def nbytes(self) -> int:
        """Return the bytes that it holds; they never grow."""
        return self._native.bytes

    def copy(self) -> Cache:
        """Return an independent cache with the same tokens.

        Raises:
            SessionBusy: A forward is using the cache.
        """
        return Cache(self._model.copy_of(self._native), self._model)

    def evict_for_space(self, n: int) -> None:
        """Make room for `n` tokens that are to see the same keys, as the original code does.

        Does nothing where they fit beside what is cached. Else evicts at once, in all rows, the
        window tokens that would leave one by one while the `n` are read. Nobody needs this to stay
        within memory; it changes what the first of the `n` tokens see.

        Args:
            n: In [0, W − 1].

        Raises:
            InvalidArgument: `n` is out of range.
            SessionBusy: A forward is using the cache.
        """
        self._native.evict_for_space(as_int("evict_for_space", "n", n, 0, 1 << 53))

    def evict_range(self, start: int, end: int) -> None:
        """Take tokens out of the middle, in all rows; older window tokens move up behind them.

        The moved keys are turned by the distance, and rounded once more.

        Args:
            start: The first token's rank as the next token will count: sinks from 0, then the
                window from its oldest token. At least S.
            end: The rank behind the last one, above `start`.

        Raises:
            InvalidArgument: The range is not within the window's tokens.
            SessionBusy: A forward is using the cache.
            EngineDead: The model is closed, or its engine has failed.
        """
        most = 1 << 53
        self._model.evict_range(
            self._native,
            as_int("evict_range", "start", start, 0, most),
            as_int("evict_range", "end", end, 0, most),
        )
