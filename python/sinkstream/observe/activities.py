"""What threads are doing now, and for how long: what a request waits for can be told apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Activity = Literal["encoding", "engine", "store"]
"""Encoding text, waiting for the engine, or reading or writing the store of conversations."""


class Activities:
    """One for each thread that says so. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current: dict[int, tuple[Activity, float]] = {}
        """By thread: what it is doing, and since when."""

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Note that the thread does this in the block, and afterwards what it did before."""
        thread = threading.get_ident()
        before = self._current.get(thread)
        self._current[thread] = activity, self._clock()
        try:
            yield
        finally:
            if before is None:
                del self._current[thread]
            else:
                self._current[thread] = before

    def count(self, activity: Activity) -> int:
        """Return the threads that do this now."""
        return sum(current == activity for current, _ in list(self._current.values()))

    def longest_s(self, activity: Activity) -> float:
        """Return for how long the thread has done it that has done it the longest."""
        now = self._clock()
        found = (now - since for current, since in list(self._current.values())
                 if current == activity)  # fmt: skip
        return max(found, default=0.0)


ACTIVITIES = Activities()
"""Those of this process."""
