"""Who generates next: a seat for each reply that runs, given to the keys in turn.

What has no seat waits here. Of those that have one, `csrc/engine/shares.h` says which is the next
to be admitted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sinkstream.server.admission import KeyShares, Weights


@dataclass(eq=False, slots=True)
class _Waiting:
    """A reply that waits for a seat."""

    tenant: str
    priority: int
    has_seat: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Seats:
    """One for each reply that is generated at the same time.

    The next one goes to the key with the fewest by its weight, of these to the one that has waited
    for a turn the longest; in a key by priority, then in order.
    """

    def __init__(self, count: int, weights: Weights) -> None:
        """Give out `count` seats; a second key finds one free, if there are several."""
        self.shares = KeyShares(count, weights, reserve=1 if count > 1 else 0)
        self._queues: dict[str, list[_Waiting]] = {}
        """The keys that wait, and their replies; a key that gets a seat goes to the end."""

    @property
    def waiting(self) -> int:
        """Return the replies that wait."""
        return sum(map(len, self._queues.values()))

    def waiting_of(self, tenant: str) -> int:
        """Return how many of them belong to a key."""
        return len(self._queues.get(tenant, ()))

    @property
    def waiting_for_share(self) -> int:
        """Return how many of them wait although a seat is free: their keys have their shares."""
        return self.waiting if self.shares.held < self.shares.limit else 0

    def must_wait(self, tenant: str) -> bool:
        """Return whether a key's next reply has to wait."""
        return tenant in self._queues or not self.shares.has_room(tenant)

    async def acquire(self, tenant: str, priority: int = 0) -> None:
        """Wait for a seat; lower priorities go first."""
        if not self.must_wait(tenant):
            self.shares.take(tenant)
            return
        waiting = _Waiting(tenant, priority)
        queue = self._queues.setdefault(tenant, [])
        later = (i for i, other in enumerate(queue) if other.priority > priority)
        queue.insert(next(later, len(queue)), waiting)
        try:
            await waiting.has_seat
        except asyncio.CancelledError:
            if waiting.has_seat.done() and not waiting.has_seat.cancelled():
                self.release(tenant)
            elif waiting in self._queues.get(tenant, ()):
                self._remove(waiting)
            raise

    def release(self, tenant: str) -> None:
        """Give back a seat, which goes to the next reply."""
        self.shares.give_back(tenant)
        self._give_out()

    def _give_out(self) -> None:
        while (waiting := self._next()) is not None:
            self._remove(waiting)
            if waiting.has_seat.cancelled():  # its task is about to notice
                continue
            if waiting.tenant in self._queues:  # its next reply comes after those of the others
                self._queues[waiting.tenant] = self._queues.pop(waiting.tenant)
            self.shares.take(waiting.tenant)
            waiting.has_seat.set_result(None)

    def _next(self) -> _Waiting | None:
        tenant = self.shares.next_of(self._queues)
        return None if tenant is None else self._queues[tenant][0]

    def _remove(self, waiting: _Waiting) -> None:
        queue = self._queues[waiting.tenant]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.tenant]
