"""Shares of what is limited, so that no key is harmed by another.

A key may hold all of a limit but a reserve, which a second key needs to begin. It may use the
reserve up to its share: the limit divided by the weights of the keys that hold some of it. So what
one key does not use serves the others, and what a key holds beyond its share returns when it ends.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_REMEMBERED = 64  # ends, which give the rate at which a limit becomes free
_LONGEST_WAIT_S = 60

Weights = Mapping[str, float]
"""Those of the server's keys by tenant; empty without keys."""


class _End(NamedTuple):
    at: float
    tenant: str
    amount: int


class Shares:
    """Counts what each key holds of a limit. Belongs to one event loop."""

    def __init__(
        self,
        limit: int,
        weights: Weights,
        reserve: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Share `limit` among keys; the reserve is a quarter of it, or `reserve`."""
        self.limit = limit
        self._weights = weights
        self._reserve = reserve
        self._clock = clock
        self._held: Counter[str] = Counter()
        self.held = 0
        self._ends: deque[_End] = deque(maxlen=_REMEMBERED)

    @property
    def reserve(self) -> int:
        """Return what a single key may not use; 0 if there is no second one."""
        if len(self._weights) < 2:
            return 0
        whole = self.limit // 4 if self._reserve is None else self._reserve
        return min(whole, self.limit // 2)

    def held_by(self, tenant: str) -> int:
        """Return what a key holds."""
        return self._held[tenant]

    def most_of(self, tenant: str) -> int:
        """Return how much a key may hold now."""
        keys = {*self._held, tenant}
        share = self.limit * self.weight(tenant) / sum(map(self.weight, keys))
        free = self.limit - self.held
        of_reserve = min(math.ceil(share), self.limit - self.reserve)
        return min(
            self.held_by(tenant) + free,
            max(of_reserve, self.held_by(tenant) + free - self.reserve),
        )

    def weight(self, tenant: str) -> float:
        """Return a key's weight."""
        return self._weights.get(tenant, 1.0)

    def has_room(self, tenant: str, count: int = 1) -> bool:
        """Return whether a key may hold `count` more."""
        return self.held_by(tenant) + count <= self.most_of(tenant)

    def take(self, tenant: str, count: int = 1) -> None:
        """Count what a key holds from now on."""
        self._held[tenant] += count
        self.held += count

    def give_back(self, tenant: str, count: int = 1) -> None:
        """Count what a key holds no longer."""
        if count == 0:
            return
        self.held -= count
        self._held[tenant] -= count
        if self._held[tenant] == 0:
            del self._held[tenant]
        self._ends.append(_End(self._clock(), tenant, count))

    def retry_after_s(self, tenant: str, count: int = 1) -> int:
        """Return the seconds until a key may hold `count` more, at the rate of the recent ends.

        If it is its own share that is used up, those are its own ends.
        """
        is_own = self.held + count <= self.limit
        ends = [end for end in self._ends if not is_own or end.tenant == tenant]
        if len(ends) < 2:
            return 1
        missing = self.held_by(tenant) + count - self.most_of(tenant)
        span = self._clock() - ends[0].at
        freed = sum(end.amount for end in ends)
        return max(1, min(_LONGEST_WAIT_S, math.ceil(span / freed * max(missing, 1))))


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
        self.shares = Shares(count, weights, reserve=1 if count > 1 else 0)
        self._queues: dict[str, list[_Waiting]] = {}
        """The keys that wait, and their replies; a key that gets a seat goes to the end."""

    @property
    def waiting(self) -> int:
        """Return the replies that wait."""
        return sum(map(len, self._queues.values()))

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
            else:
                self._remove(waiting)
            raise

    def release(self, tenant: str) -> None:
        """Give back a seat, which goes to the next reply."""
        self.shares.give_back(tenant)
        self._give_out()

    def _give_out(self) -> None:
        while (waiting := self._next()) is not None:
            self._remove(waiting)
            if waiting.tenant in self._queues:  # its next reply comes after those of the others
                self._queues[waiting.tenant] = self._queues.pop(waiting.tenant)
            self.shares.take(waiting.tenant)
            waiting.has_seat.set_result(None)

    def _next(self) -> _Waiting | None:
        shares = self.shares
        may = [tenant for tenant in self._queues if shares.has_room(tenant)]
        if not may:
            return None
        fewest = min(may, key=lambda tenant: shares.held_by(tenant) / shares.weight(tenant))
        return self._queues[fewest][0]

    def _remove(self, waiting: _Waiting) -> None:
        queue = self._queues[waiting.tenant]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.tenant]
