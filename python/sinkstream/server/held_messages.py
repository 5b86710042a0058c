"""Counts what one WebSocket holds of messages, as a part of what all of them may hold."""

from __future__ import annotations

from collections import deque

from sinkstream.server.byte_budget import ByteBudget

MESSAGE_BYTES = 256
"""What a complete message takes in addition to its data, rounded up."""


class HeldMessages:
    """Messages on the way to the app. Belongs to one event loop."""

    def __init__(self, budget: ByteBudget) -> None:
        """Count in `budget`, too."""
        self._budget = budget
        self._counted = 0  # in the budget
        self._queued: deque[tuple[int, bool]] = deque()
        """Bytes of each message that the app has not received, and whether it is a text."""
        self._queued_bytes = 0
        """Their sum: there may be very many."""
        self._received = 0
        """Bytes of the message that the app has received last, and may still hold."""

    def queue(self, size: int, *, is_text: bool) -> None:
        """Note that a message of `size` bytes is complete."""
        self._queued.append((size + MESSAGE_BYTES, is_text))
        self._queued_bytes += size + MESSAGE_BYTES

    def receive(self) -> bool:
        """Note that the app receives the next message; return whether it is a text."""
        self._received, is_text = self._queued.popleft()
        self._queued_bytes -= self._received
        return is_text

    def drop(self) -> int:
        """Note that the app does not hold that message any longer; return its size."""
        size, self._received = self._received, 0
        return max(0, size - MESSAGE_BYTES)

    def forget_queued(self) -> None:
        """Note that the queue is empty."""
        self._queued.clear()
        self._queued_bytes = 0

    def count(self, arriving: int) -> None:
        """Count all of it in the budget, and `arriving` bytes of incomplete messages.

        Raises:
            ApiError: All sockets would hold too much. Nothing has changed then.
        """
        held = arriving + self._queued_bytes + self._received
        if held > self._counted:
            self._budget.take(held - self._counted)
        else:
            self._budget.give_back(self._counted - held)
        self._counted = held
