"""Which tokens a query sees, and at which positions: the literal definition."""

from __future__ import annotations


def live_indices(t: int, sinks: int, window: int) -> list[int]:
    """List the indices of the keys that the query of token `t` sees, in rising order.

    Args:
        t: Index of the query's token, from 0.
        sinks: S, the number of first tokens that are never evicted; at least 0.
        window: W, the number of last tokens, including token `t`; at least 1.
    """
    sink_tokens = [j for j in range(sinks) if j <= t]
    window_tokens = list(range(max(sinks, t - window + 1), t + 1))
    return sink_tokens + window_tokens


def positions(t: int, sinks: int, window: int) -> list[int]:
    """List the rotary positions of `live_indices(t, sinks, window)`: each token's rank in it.

    The last one is the query's own: its token is always the newest live token.
    """
    return list(range(len(live_indices(t, sinks, window))))


class LiveTokens:
    """The same as a list that tokens join one by one, and that can lose some from its middle."""

    def __init__(self, sinks: int, window: int) -> None:
        self.sinks, self.window = sinks, window
        self.indices: list[int] = []

    def add(self, t: int) -> list[int]:
        """Add the next token, and return what its query sees."""
        self.indices.append(t)
        self._keep_recent(self.window)
        return list(self.indices)

    def evict_range(self, start: int, end: int) -> None:
        """Lose the tokens at ranks [start, end) of what the next token would see."""
        self._keep_recent(self.window - 1)
        del self.indices[start:end]

    def keep_only(self, other: LiveTokens) -> None:
        """Lose what `other` has lost, and what the next token would not see."""
        self._keep_recent(self.window - 1)
        self.indices = [t for t in self.indices if t in other.indices]

    def _keep_recent(self, count: int) -> None:
        while len(self.indices) > self.sinks + count:
            del self.indices[self.sinks]
