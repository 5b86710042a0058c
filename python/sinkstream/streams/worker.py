"""Runs a blocking call in a worker thread, for an asyncio task that may be cancelled meanwhile."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")

Check = Callable[[], None]
"""Raises `Abandoned` if the result is no longer wanted."""


class Abandoned(Exception):
    """Ends a call in a worker thread whose task has been cancelled."""


def wanted() -> None:
    """Serve as the `Check` of a call that no task can cancel."""


async def in_thread(call: Callable[[Check], _T], discard: Callable[[_T], None]) -> _T:
    """Make a blocking call in a worker thread, without blocking the event loop.

    If the task is cancelled, the cancellation is raised once the call has returned, so that no part
    of it is still running. A call that has not started yet never starts.

    Args:
        call: Gets a function to call between long steps. It ends a call that is not wanted.
        discard: Gets what a cancelled call returns nevertheless.

    Raises:
        Exception: Any error that `call` raises.
    """
    import asyncio  # 2 MB that a blocking caller does without

    lock = threading.Lock()
    has_begun = is_cancelled = False

    def check() -> None:
        if is_cancelled:
            raise Abandoned

    def run() -> _T:
        nonlocal has_begun
        with lock:
            check()
            has_begun = True
        return call(check)

    context = contextvars.copy_context()
    future = asyncio.get_running_loop().run_in_executor(None, context.run, run)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with lock:
            is_cancelled = True
        if not has_begun:
            future.cancel()
        await _until_done(future)
        if not future.cancelled() and future.exception() is None:
            discard(future.result())
        raise


async def _until_done(future: asyncio.Future[_T]) -> None:
    import asyncio

    while not future.done():
        with suppress(asyncio.CancelledError):  # the first cancellation will be raised
            await asyncio.wait([future])
