"""Bounds the memory of all request bodies that are held at the same time."""

from __future__ import annotations

from sinkstream.server.errors import at_capacity


class BodyBudget:
    """Counts the bytes of bodies between their arrival and their parsing; of one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, count: int) -> None:
        """Count bytes that have arrived.

        Raises:
            ApiError: All bodies together would exceed the limit.
        """
        if self.held + count > self._limit:
            raise at_capacity(
                f"server: the bodies of all requests must have at most {self._limit} bytes "
                "together, but have more. Try again later.",
                1,
            )
        self.held += count

    def give_back(self, count: int) -> None:
        """Count bytes that are no longer held."""
        self.held -= count
