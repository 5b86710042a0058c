"""A response that is streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from sinkstream.server.response_forms import Header, ResponseForm
from sinkstream.text.line_breaks import bytes_on_one_line

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class StreamWriter:
    """One streamed response. Several tasks may write; used with `async with`.

    Leaving the block without `finish` leaves the response incomplete, so that the client cannot
    take it for a complete one.
    """

    def __init__(
        self,
        send: Send,
        form: ResponseForm,
        progress: Callable[[], str],
        keepalive_s: float,
        headers: tuple[Header, ...] = (),
    ) -> None:
        """Write to `send`, which waits while the client is slow.

        After `keepalive_s` without a write, what `form` has for that is written, with the text of
        `progress`. `headers` are in addition to those of every stream.
        """
        self._send = send
        self._form = form
        self._progress = progress
        self._keepalive_s = keepalive_s
        self._headers = [*form.stream_headers, *headers]
        self._lock = asyncio.Lock()
        self._written_at = time.monotonic()
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        # The head leaves with the first part of the body: an empty one.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        self._written_at = time.monotonic()
        self._timer = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop_timer()

    async def write(self, data: bytes) -> None:
        """Write JSON in its frames; wait while the client is slow."""
        body = bytes_on_one_line(data)
        async with self._lock:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._written_at = time.monotonic()

    async def finish(self, data: bytes = b"") -> None:
        """Write what is left, and the end of the response."""
        await self._stop_timer()
        body = bytes_on_one_line(data) + self._form.end
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _keep_alive(self) -> None:
        while True:
            idle_s = time.monotonic() - self._written_at
            if idle_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - idle_s)
            else:
                await self.write(self._form.keep_alive(self._progress()))

    async def _stop_timer(self) -> None:
        if self._timer is None:
            return
        timer, self._timer = self._timer, None
        timer.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([timer])
