"""Which tokens a query sees, and at which positions: the definition, literally."""

from __future__ import annotations


def live_indices(t: int, sinks: int, window: int) -> list[int]:
    """List the indices of the keys that the query of token `t` sees, in rising order.

    Args:
        t: Index of the query's token, from 0.
        sinks: S, the first tokens, which stay for ever; at least 0.
        window: W, the last tokens, token `t` included; at least 1.
    """
    sink_tokens = [j for j in range(sinks) if j <= t]
    window_tokens = list(range(max(sinks, t - window + 1), t + 1))
    return sink_tokens + window_tokens


def positions(t: int, sinks: int, window: int) -> list[int]:
    """List the rotary positions of `live_indices(t, sinks, window)`: each token's rank among them.

    The last one is the query's own: its token is always the youngest live token.
    """
    return list(range(len(live_indices(t, sinks, window))))
