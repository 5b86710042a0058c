"""Limits how many replies are in progress. Beyond a fixed number, they are refused, not queued."""

from __future__ import annotations

import math
import time
from collections import deque

from sinkstream.server.errors import at_capacity

# Replies whose end times give the rate at which places become free.
_REMEMBERED = 64
_LONGEST_WAIT_S = 60


class Admission:
    """Counts replies in progress. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        """Allow `limit` replies, generated and waiting ones together."""
        self.limit = limit
        self.in_progress = 0
        self._ends: deque[float] = deque(maxlen=_REMEMBERED)

    def enter(self, count: int) -> None:
        """Count `count` more replies.

        Raises:
            ApiError: There is no room for them (429, with the time after which to try again).
        """
        if self.in_progress + count > self.limit:
            raise at_capacity(
                f"server: at most {self.limit} replies can be in progress, but {self.in_progress} "
                f"are, and this request asks for {count} more. Try again later.",
                self.retry_after_s(count),
            )
        self.in_progress += count

    def leave(self, count: int) -> None:
        """Count `count` replies as ended."""
        self.in_progress -= count
        self._ends.extend([time.monotonic()] * count)

    def retry_after_s(self, count: int = 1) -> int:
        """Return the seconds until `count` replies will have ended, at the recent rate."""
        if len(self._ends) < 2:
            return 1
        span = time.monotonic() - self._ends[0]
        return max(1, min(_LONGEST_WAIT_S, math.ceil(span / len(self._ends) * count)))
