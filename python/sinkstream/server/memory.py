"""Keeps the memory of a server that runs for months constant."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

TRIM_S = 60.0
LARGE_BYTES = 1 << 16
"""The smallest large block."""
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # from glibc's malloc.h


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
