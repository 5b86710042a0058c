"""The interpreter's settings while servers run, so that their event loops are rarely held up."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SWITCH_S = 0.0001
"""After this time, a thread that computes lets another one continue. With each write to a client, a
loop gives way to the threads of the pool, so it waits this long many times in a turn."""
YOUNG_AFTER = 500_000
"""New objects, less those that were freed, before a collection begins by itself. With a thousand
streams, tens of thousands of new objects are in use at any time, and a collection that looks at
them takes 30 ms. It would find nothing, because requests leave no reference cycles."""
_EVERY_S = 60.0
_AT_LATEST_S = 600.0


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings of the whole process."""

    thresholds: tuple[int, int, int]
    switch_s: float

    @staticmethod
    def current() -> _Settings:
        """Return those in effect."""
        return _Settings(gc.get_threshold(), sys.getswitchinterval())

    def apply(self) -> None:
        """Set them."""
        gc.set_threshold(*self.thresholds)
        sys.setswitchinterval(self.switch_s)


_lock = threading.Lock()
_before: list[_Settings] = []
"""The settings when each of the running servers began; in a process, there may be several."""


@contextmanager
def set_for_serving() -> Iterator[None]:
    """Set the interpreter for a server until the block ends; the last of several restores it.

    What exists now is left out of garbage collections: a server's modules, model and routes are a
    few hundred thousand objects that stay. A collection of all other objects holds up every stream
    as well, for a fifth of a second if there are a thousand; `collect_repeatedly` says when.
    """
    gc.collect()
    with _lock:
        gc.freeze()
        _before.append(_Settings.current())
        _, middle_after, full_after = _before[0].thresholds
        _Settings((YOUNG_AFTER, middle_after, full_after), SWITCH_S).apply()
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                before.apply()
                gc.unfreeze()


async def collect_repeatedly(
    is_idle: Callable[[], bool],
    every_s: float = _EVERY_S,
    at_latest_s: float = _AT_LATEST_S,
) -> None:
    """Collect garbage until cancelled: at idle moments, and at the latest after `at_latest_s`."""
    collected_at = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        if is_idle() or time.monotonic() - collected_at >= at_latest_s:
            gc.collect()
            collected_at = time.monotonic()
