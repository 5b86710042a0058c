"""The server's health: how late its event loop is, and whether engine and store answer."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Protocol

from sinkstream.observe.activities import ACTIVITIES, Activities

_EVERY_S = 0.1
_SLOW_S = 5.0  # of a call to the store, which takes milliseconds
_LAGS = 100  # lags, of the last ten seconds
_DELAY_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Watched(Protocol):
    """The part of a model that is watched."""

    def stats(self) -> dict[str, Any]:
        """Return the engine's counters."""
        ...


class Health:
    """The server's health, as seen from outside the engine. Belongs to one event loop."""

    def __init__(
        self,
        watchdog_s: float,
        clock: Callable[[], float] = time.monotonic,
        activities: Activities = ACTIVITIES,
    ) -> None:
        """Count the engine as stalled after `watchdog_s` without a step while it has work.

        Its work includes what `activities` say that threads wait for.
        """
        self._activities = activities
        self._watchdog_s = watchdog_s
        self._clock = clock
        self._model: Watched | None = None
        self._lags: deque[float] = deque([0.0], maxlen=_LAGS)
        self.delays = Delays()
        """Those of the event loop since it began, measured ten times a second."""
        self._steps = -1
        self._moved_at = clock()
        self._alarms: set[asyncio.Future[None]] = set()
        self.is_stalled = False

    def watch(self, model: Watched) -> None:
        """Watch a model's engine as well."""
        self._model = model
        self._moved_at = self._clock()

    @property
    def lag_s(self) -> float:
        """Return the longest delay of the event loop within the last ten seconds."""
        return max(self._lags)

    def check(self) -> None:
        """Look at the engine's counters."""
        if self._model is None:
            return
        stats, now = self._model.stats(), self._clock()
        # Parked ones wait for their clients.
        has_work = stats["running"] > stats["parked"] or stats["waiting"] > 0
        has_work = has_work or self._activities.count("engine") > 0
        if stats["steps"] != self._steps or not has_work:
            self._steps, self._moved_at = stats["steps"], now
        self.is_stalled = now - self._moved_at >= self._watchdog_s

    @contextmanager
    def alarm(self) -> Iterator[asyncio.Future[None]]:
        """Give a future that is done once the engine is found to have stalled."""
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._alarms.add(alarm)
        try:
            yield alarm
        finally:
            self._alarms.discard(alarm)

    @property
    def has_slow_store(self) -> bool:
        """Return whether a call has waited for the store of conversations for a long time."""
        return self._activities.longest_s("store") >= _SLOW_S

    def note_delay(self, due: float) -> float:
        """Note how late a measurement is, and those that became due meanwhile.

        Returns:
            When the last of these was due.
        """
        now = self._clock()
        self._lags.append(max(0.0, now - due))
        self.delays.add(max(0.0, now - due))
        while now - due >= _EVERY_S:
            due += _EVERY_S
            self.delays.add(now - due)
        return due

    async def run(self, on_stall: Callable[[], None]) -> None:
        """Watch until cancelled; call `on_stall` whenever the engine is found to have stalled."""
        due = self._clock()
        while True:
            due += _EVERY_S
            await asyncio.sleep(max(0.0, due - self._clock()))
            due = self.note_delay(due)
            self.check()
            if self.is_stalled:
                on_stall()
                for alarm in self._alarms:
                    if not alarm.done():
                        alarm.set_result(None)


class Delays:
    """Counts delays by their size."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_DELAY_BOUNDS_S) + 1)  # the last one: above all bounds
        self._sum_s = 0.0

    def add(self, delay_s: float) -> None:
        """Count a delay."""
        self._counts[bisect_left(_DELAY_BOUNDS_S, delay_s)] += 1
        self._sum_s += delay_s

    def stats(self) -> dict[str, Any]:
        """Return the histogram: for each bound, the number of delays that do not exceed it."""
        *cumulative, count = accumulate(self._counts)
        return {
            "count": count,
            "sum_s": self._sum_s,
            "bounds_s": _DELAY_BOUNDS_S,
            "cumulative": cumulative,
        }
