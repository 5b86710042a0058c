"""What ends the reading of a conversation early: its client, the server, or a deadline."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sinkstream.errors import SinkstreamError

_MOST_S = 1e9  # as for `timeout_s`
_LEAST_S = 1e-6  # a request that is late ends after its first step


class ReadingEnded(SinkstreamError, RuntimeError):
    """A request has ended while its conversation was being read."""


class ReadingCancelled(ReadingEnded):
    """Its client has left, or the server is shutting down."""

    code = "cancelled"


class ReadingTimedOut(ReadingEnded):
    """Its time has passed. What has been read stays."""

    code = "timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"stream: the conversation must be read within {timeout_s:g} s (`timeout_s`), but was "
            "not. Send the request again: reading continues where it stopped."
        )


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request has to end."""

    timeout_s: float
    """After this time from its beginning."""
    until: float
    """That moment, by `time.monotonic`."""

    @property
    def left_s(self) -> float:
        """Return the rest of the time, which is above 0."""
        return max(_LEAST_S, self.until - time.monotonic())


def deadline_of(timeout_s: object) -> Deadline | None:
    """Return the deadline of a request that begins now; None without one.

    What is no time is not looked at: the request's stream refuses it.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        return None
    if not 0 < timeout_s <= _MOST_S:
        return None
    return Deadline(timeout_s, time.monotonic() + timeout_s)
