"""The settings of a process that serves: garbage collection, threads' turns, and one small heap."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SWITCH_S = 0.0001
"""After this time, a thread that computes lets another one continue. With each write to a client, a
loop gives way to the threads of the pool, so it waits this long many times in a turn."""
YOUNG_AFTER = 500_000
"""New objects, less those that were freed, before a collection begins by itself. With a thousand
streams, tens of thousands of new objects are in use at any time, and a collection that looks at
them takes 30 ms. It would find nothing, because requests leave no reference cycles."""
_COLLECT_S = 60.0
_COLLECT_AT_LATEST_S = 600.0
TRIM_S = 60.0
LARGE_BYTES = 1 << 16
"""The smallest large block."""
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # from glibc's malloc.h


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
    every_s: float = _COLLECT_S,
    at_latest_s: float = _COLLECT_AT_LATEST_S,
) -> None:
    """Collect garbage until cancelled: at idle moments, and at the latest after `at_latest_s`."""
    collected_at = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        if is_idle() or time.monotonic() - collected_at >= at_latest_s:
            gc.collect()
            collected_at = time.monotonic()


def keep_heap_small() -> None:
    """Let threads allocate from one heap, which large blocks do not extend, if glibc manages it.

    For a process that only serves, since it cannot be undone. Settings in the environment remain.

    Otherwise each thread gets a heap, and requests of all sizes leave gaps in every one of them.
    Tokens are generated without allocating, so threads rarely wait for each other.

    A large block for which the heap has no gap gets pages of its own, which are returned once it is
    freed. Otherwise the heap would be extended for it, and small blocks would soon take part of
    that space: SQLite allocates 64 or 85 KiB in every transaction. New pages cost time, which is
    noticed with messages of a megabyte.
    """
    call = _of_glibc("mallopt")
    if call is None:
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "MALLOC_ARENA_MAX" not in os.environ and "malloc.arena_max" not in tunables:
        call(_M_ARENA_MAX, 1)
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ and "malloc.mmap_threshold" not in tunables:
        call(_M_MMAP_THRESHOLD, LARGE_BYTES)  # from now on, glibc does not raise it


def trim() -> None:
    """Return free memory to the system if the C library is glibc; blocks for milliseconds.

    Requests of all sizes leave gaps in the heap, which glibc keeps.
    """
    call = _of_glibc("malloc_trim")
    if call is not None:
        call(ctypes.c_size_t(0))


def _of_glibc(name: str) -> Any:
    """Return a function of the C library, or None if it has no such function."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


async def trim_repeatedly(
    run: Callable[[Callable[[], None]], Awaitable[None]], every_s: float = TRIM_S
) -> None:
    """Trim until cancelled; `run` runs a blocking call in another thread."""
    while True:
        await asyncio.sleep(every_s)
        await run(trim)
