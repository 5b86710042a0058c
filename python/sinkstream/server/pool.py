"""A small pool of threads for calls that take over a millisecond, so that the loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")

THREADS = 2


class Pool:
    """Runs blocking calls: JSON, tokenizing, templates, sessions, the store."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="sinkstream-server")

    async def run(
        self, call: Callable[[], _T], discard: Callable[[_T], object] = lambda _: None
    ) -> _T:
        """Return what a call returns.

        If the task is cancelled, a call that has not begun never begins. If it has begun, its
        result goes to `discard` before the cancellation is raised.

        Raises:
            Exception: Any error that `call` raises.
        """
        future = self._executor.submit(call)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel():
                await _until_done(future)
                if future.exception() is None:
                    await _until_done(self._executor.submit(discard, future.result()))
            raise

    def submit(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Begin a call that is completed even if no task waits for it."""
        return asyncio.wrap_future(self._executor.submit(call))

    def close(self) -> None:
        """End the threads after the calls that have begun."""
        self._executor.shutdown(wait=True, cancel_futures=True)


async def _until_done(future: Future[Any]) -> None:
    waiting = asyncio.wrap_future(future)
    while not waiting.done():
        with suppress(asyncio.CancelledError):  # the first cancellation will be raised
            await asyncio.wait([waiting])
