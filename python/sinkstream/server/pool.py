"""A small pool of threads for calls that take over a millisecond, so that the loop stays free."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")

THREADS = 2


_Queued = tuple[Callable[[], Any], Future[Any]]

_MOST = 1 << 16  # threads; there are only as many as are at work or wait


class Pool:
    """Runs blocking calls: JSON, tokenizing, templates, sessions, the store.

    Two are at work at a time. Those that wait for the model, inside `waiting`, do not count.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_MOST, thread_name_prefix="sinkstream-server")
        self._changed = threading.Condition()  # of all below
        self._queue: deque[_Queued] = deque()
        self._at_work = 0
        self._returning = 0  # they have waited, and go before those in the queue
        self._waiting = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let another call run while this one, in the block, waits for the model."""
        with self._changed:
            self._at_work -= 1
            self._waiting += 1
            self._feed()
        try:
            yield
        finally:
            with self._changed:
                self._returning += 1
                self._changed.wait_for(lambda: self._at_work < THREADS)
                self._returning -= 1
                self._waiting -= 1
                self._at_work += 1

    def _submit(self, call: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        with self._changed:
            self._queue.append((call, future))
            self._feed()
        return future

    def _feed(self) -> None:
        """Begin calls while there is room. The caller holds the lock."""
        while self._queue and self._at_work + self._returning < THREADS:
            self._at_work += 1
            self._executor.submit(self._run, *self._queue.popleft())

    def _run(self, call: Callable[[], Any], future: Future[Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
        finally:
            with self._changed:
                self._at_work -= 1
                self._feed()
                self._changed.notify_all()

    async def run(
        self, call: Callable[[], _T], discard: Callable[[_T], object] = lambda _: None
    ) -> _T:
        """Return what a call returns.

        If the task is cancelled, a call that has not begun never begins; of one that has, the
        result goes to `discard` before the cancellation is raised.

        Raises:
            Exception: Any error that `call` raises.
        """
        future = self._submit(call)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel():
                await _until_done(future)
                if future.exception() is None:
                    await _until_done(self._submit(partial(discard, future.result())))
            raise

    def submit(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Begin a call that ends even if no task waits for it."""
        return asyncio.wrap_future(self._submit(call))

    def close(self) -> None:
        """End the threads after the calls that have begun."""
        with self._changed:
            while self._queue:
                self._queue.popleft()[1].cancel()
            self._changed.wait_for(lambda: self._at_work + self._waiting == 0)
        self._executor.shutdown()


async def _until_done(future: Future[Any]) -> None:
    waiting = asyncio.wrap_future(future)
    while not waiting.done():
        with suppress(asyncio.CancelledError):  # the first cancellation will be raised
            await asyncio.wait([waiting])
