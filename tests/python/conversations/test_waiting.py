"""What a call of the pool waits for, others can give it: it does not keep them from working."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sinkstream.conversations.residency import Residency, Resident
from sinkstream.conversations.session_at import KeyedLock
from sinkstream.server.pool import THREADS, Pool
from tests.python.server.test_pool import until

WITHIN_S = 10  # less than any wait that ends by itself


class Seat:
    """A seat whose session one call keeps while it waits for the model."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = KeyedLock()
        self.residency = Residency(1, lambda _: None)
        self.residency.waiting = pool.waiting
        self.is_kept = threading.Event()
        self.go_on = threading.Event()
        self.residency.take_seat()
        session = cast(Any, SimpleNamespace(close=lambda: None))
        self.residency.seat(Resident(session, None))

    def keep(self) -> None:
        resident = self.residency.all()[0]
        self.residency.hold(resident)
        with self._lock.of("name", self._pool.waiting):
            self.is_kept.set()
            with self._pool.waiting():
                assert self.go_on.wait(WITHIN_S)
        self.residency.release(resident)

    def claim(self) -> None:
        resident = self.residency.acquire(lambda one: True)
        assert resident is not None
        self.residency.release(resident)

    def take_seat(self) -> None:
        self.residency.take_seat()
        self.residency.free_seat()

    def lock(self) -> None:
        with self._lock.of("name", self._pool.waiting):
            pass


@pytest.mark.parametrize(
    ("wait", "count"),
    [(Seat.claim, THREADS + 1), (Seat.lock, THREADS + 1), (Seat.take_seat, 1)],
)
def test_a_call_comes_back_though_others_wait_for_what_it_holds(
    wait: Callable[[Seat], None], count: int
) -> None:
    async def run() -> None:
        pool = Pool()
        seat = Seat(pool)
        keeping = pool.submit(seat.keep)
        await asyncio.to_thread(until, seat.is_kept.is_set)
        calls = [pool.submit(lambda: wait(seat)) for _ in range(count)]
        await asyncio.to_thread(until, lambda: pool._waiting == 1 + count)
        seat.go_on.set()
        await asyncio.wait_for(asyncio.gather(keeping, *calls), WITHIN_S)
        await asyncio.to_thread(pool.close)

    asyncio.run(run())
