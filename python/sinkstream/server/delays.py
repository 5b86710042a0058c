"""A histogram of the event loop's delays, in the form of the engine's."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any

_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Delays:
    """Counts delays by their size."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)  # the last one: above all bounds
        self._sum_s = 0.0

    def add(self, delay_s: float) -> None:
        """Count a delay."""
        self._counts[bisect_left(_BOUNDS_S, delay_s)] += 1
        self._sum_s += delay_s

    def stats(self) -> dict[str, Any]:
        """Return the histogram: for each bound, the number of delays that do not exceed it."""
        *cumulative, count = accumulate(self._counts)
        return {
            "count": count,
            "sum_s": self._sum_s,
            "bounds_s": _BOUNDS_S,
            "cumulative": cumulative,
        }
