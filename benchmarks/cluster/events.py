"""Simulated time: calls in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """What happens next. Calls of the same time happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._count = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call at a time, or now if that is in the past."""
        self._count += 1
        heapq.heappush(self._queue, (max(time_s, self.now_s), self._count, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after a delay."""
        self.at(self.now_s + delay_s, call)

    def run(self, until_s: float) -> None:
        """Run everything up to a time."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._queue)
            call()
        self.now_s = until_s
