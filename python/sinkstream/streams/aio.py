"""Lets an asyncio task wait for a stream. The generation thread never touches an event loop.

Each loop owns and watches one file descriptor; closing the loop drops it. The generation thread
makes the descriptor readable at most once per step, for all streams that the loop waits for.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from sinkstream import _core
from sinkstream.streams.slices import Slices

_T = TypeVar("_T")


class _Bell:
    """Wakes the tasks of one event loop whose streams are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._native = _core.LoopBell()
        self._slices = Slices()
        self._waiting: dict[_core.TokenStream, asyncio.Future[None]] = {}
        # The loop would keep the caller's context alive: give it an empty one.
        contextvars.Context().run(loop.add_reader, self._native.fileno(), self._wake)

    async def wait(self, *streams: _core.TokenStream) -> None:
        """Return when a stream is ready. Only one task can wait for a stream at a time."""
        if not all(stream.ring_when_ready(self._native) for stream in streams):
            await asyncio.sleep(0)  # lets other tasks run even if this one never has to wait
            await self._slices.turn()
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.update(dict.fromkeys(streams, future))
        try:
            await future
        finally:
            for stream in streams:
                self._waiting.pop(stream, None)

    def _wake(self) -> None:
        self._native.clear()
        ready = [stream for stream in self._waiting if stream.is_ready]
        for stream in ready:
            self._slices.add(self._waiting.pop(stream))


# Only the loop keeps its bell alive, through the reader it watches.
_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Bell]] = (
    weakref.WeakKeyDictionary()
)


async def until_ready(*streams: _core.TokenStream) -> None:
    """Wait until one of `streams` is ready or has ended. Always lets other tasks run.

    Raises:
        ForkError: The model belongs to the parent of this process.
        OSError: The process cannot open more files.
    """
    loop = asyncio.get_running_loop()
    known = _bells.get(loop)
    bell = None if known is None else known()
    if bell is None:
        bell = _Bell(loop)
        _bells[loop] = weakref.ref(bell)
    await bell.wait(*streams)


class UntilNone(AsyncIterator[_T]):
    """Iterates over the results of `read` until it returns None.

    Not a generator: after a `break`, the event loop would finalize a generator only later.
    """

    def __init__(self, read: Callable[[], Awaitable[_T | None]]) -> None:
        self._read = read

    async def __anext__(self) -> _T:
        value = await self._read()
        if value is None:
            raise StopAsyncIteration
        return value
