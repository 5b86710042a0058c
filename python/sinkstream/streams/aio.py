"""How a task waits for a stream. The generation thread rings; it never touches an event loop.

Each loop watches one file descriptor, which it owns: closing the loop drops it. The generation
thread makes it readable, at most once a step for all streams that the loop waits for.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from sinkstream import _core

_T = TypeVar("_T")


class _Bell:
    """Wakes the tasks of one event loop whose streams have something for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._native = _core.LoopBell()
        self._waiting: dict[_core.TokenStream, asyncio.Future[None]] = {}
        # The loop keeps the context, too: let it be nobody's.
        contextvars.Context().run(loop.add_reader, self._native.fileno(), self._wake)

    async def wait(self, stream: _core.TokenStream) -> None:
        """Return when there is something to take. For one task and stream at a time."""
        if not stream.ring_when_ready(self._native):
            await asyncio.sleep(0)  # a reader that never has to wait leaves others their turn
            return
        self._waiting[stream] = future = asyncio.get_running_loop().create_future()
        try:
            await future
        finally:
            del self._waiting[stream]

    def _wake(self) -> None:
        self._native.clear()
        for stream, future in self._waiting.items():
            if not future.done() and stream.is_ready:
                future.set_result(None)


# The loop alone keeps its bell, in what it watches: nothing here outlives it.
_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Bell]] = (
    weakref.WeakKeyDictionary()
)


async def until_ready(stream: _core.TokenStream) -> None:
    """Wait until `stream` has something to take, or has ended. Always gives other tasks a turn.

    Raises:
        ForkError: The model belongs to the parent of this process.
        OSError: The process may open no more files.
    """
    loop = asyncio.get_running_loop()
    known = _bells.get(loop)
    bell = None if known is None else known()
    if bell is None:
        bell = _Bell(loop)
        _bells[loop] = weakref.ref(bell)
    await bell.wait(stream)


def is_abandoned(task: asyncio.Task[Any] | None) -> bool:
    """Whether the task can never go on, because its loop was closed under it."""
    return task is not None and task.get_loop().is_closed()


class UntilNone(AsyncIterator[_T]):
    """What `read` returns, again and again, until that is None.

    No generator: those let go only when their event loop finds the time, this one at a `break`.
    """

    def __init__(self, read: Callable[[], Awaitable[_T | None]]) -> None:
        self._read = read

    async def __anext__(self) -> _T:
        value = await self._read()
        if value is None:
            raise StopAsyncIteration
        return value
