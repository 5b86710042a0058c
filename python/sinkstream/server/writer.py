"""Writes a stream of events to a client, with comments while there is nothing to say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from sinkstream.server.frames import DONE
from sinkstream.text.line_breaks import bytes_on_one_line

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class EventWriter:
    """One response. Several tasks may write; used with `async with`.

    Leaving the block without `finish` leaves the response incomplete, so that the client cannot
    take it for a complete one.
    """

    def __init__(
        self,
        send: Send,
        progress: Callable[[], str],
        keepalive_s: float,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Write to `send`.

        Args:
            send: ASGI's `send`; it waits while the client is slow.
            progress: Returns the text of a comment.
            keepalive_s: Time without a write after which a comment is written.
            headers: Headers of the response, in addition to those of every stream.
        """
        self._send = send
        self._progress = progress
        self._keepalive_s = keepalive_s
        self._headers = [*EVENT_HEADERS, *headers]
        self._lock = asyncio.Lock()
        self._written_at = time.monotonic()
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        # The head leaves with the first part of the body: an empty one.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        self._written_at = time.monotonic()
        self._timer = asyncio.create_task(self._comment())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop_comments()

    async def write(self, data: bytes) -> None:
        """Write events, whose data are JSON; wait while the client is slow."""
        body = bytes_on_one_line(data)
        async with self._lock:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._written_at = time.monotonic()

    async def finish(self, data: bytes = b"") -> None:
        """Write the last events and the end of the response."""
        await self._stop_comments()
        body = bytes_on_one_line(data) + DONE
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _comment(self) -> None:
        while True:
            idle_s = time.monotonic() - self._written_at
            if idle_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - idle_s)
            else:
                await self.write(b": %b\n\n" % self._progress().encode())

    async def _stop_comments(self) -> None:
        if self._timer is None:
            return
        timer, self._timer = self._timer, None
        timer.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([timer])
