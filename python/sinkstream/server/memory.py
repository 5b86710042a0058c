"""Keeps the memory of a server that runs for months constant."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

TRIM_S = 60.0


@contextmanager
def loaded_objects_aside() -> Iterator[None]:
    """Leave out of garbage collections what exists now, until the block ends.

    A server's modules, model and routes are a few hundred thousand objects that stay. Collections
    that scan them hold up all streams for a fifth of a second. Such collections are also rare, so
    garbage from requests would accumulate.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def trim() -> None:
    """Return free memory to the system if the C library is glibc; blocks for milliseconds.

    Requests of all sizes leave gaps in the heap of each thread, which glibc keeps.
    """
    if sys.platform == "linux":
        call = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if call is not None:
            call(ctypes.c_size_t(0))


async def trim_repeatedly(
    run: Callable[[Callable[[], None]], Awaitable[None]], every_s: float = TRIM_S
) -> None:
    """Trim until cancelled; `run` runs a blocking call in another thread."""
    while True:
        await asyncio.sleep(every_s)
        await run(trim)
