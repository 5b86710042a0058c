"""Limits the memory that all requests together hold for one purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sinkstream.server.errors import at_capacity


class ByteBudget:
    """Counts bytes that are held. Belongs to one event loop."""

    def __init__(self, limit: int, what: str) -> None:
        """Allow `limit` bytes of `what`, such as "the bodies of all requests"."""
        self._limit = limit
        self._what = what
        self.held = 0

    def take(self, count: int) -> None:
        """Count bytes that are held now.

        Raises:
            ApiError: All together would exceed the limit.
        """
        if self.held + count > self._limit:
            raise at_capacity(
                f"server: {self._what} must have at most {self._limit} bytes in total, but have "
                "more. Try again later.",
                1,
            )
        self.held += count

    def give_back(self, count: int) -> None:
        """Count bytes that are no longer held."""
        self.held -= count

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Count bytes that are held within the block.

        Raises:
            ApiError: All together would exceed the limit.
        """
        self.take(count)
        try:
            yield
        finally:
            self.give_back(count)
