"""One lane of a socket: its requests, one after another, and the events of the running one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
from starlette.datastructures import Headers

from sinkstream.server.errors import ApiError, from_exception, internal
from sinkstream.server.request_log import RequestLog
from sinkstream.server.responses.begin_response import create
from sinkstream.server.responses.live_responses import Live
from sinkstream.server.responses.response_bodies import ResponseRequest
from sinkstream.server.service import Service
from sinkstream.server.stalled_engine import unless_stalled

logger = logging.getLogger("sinkstream.server")

SendEvent = Callable[[bytes], Awaitable[None]]
"""Sends an event, as JSON; waits while the client is slow."""


def error_event(error: ApiError) -> dict[str, Any]:
    """Return the event for a request that is refused."""
    fields = error.fields()
    if error.headers:
        fields["headers"] = {name.decode(): value.decode() for name, value in error.headers}
    return {"type": "error", "status": error.status, "error": fields}


class _Waiting(NamedTuple):
    """A request that has not begun."""

    body: ResponseRequest
    forks: bool
    arrived_at: float
    size: int


def written(event: dict[str, Any], lane: str | None) -> bytes:
    """Return an event as JSON, with the name of its lane."""
    return orjson.dumps(event if lane is None else {**event, "stream_id": lane})


class Lane:
    """A lane of one socket, on one event loop. Its requests never overlap."""

    def __init__(
        self,
        name: str | None,
        service: Service,
        log: RequestLog,
        headers: Headers,
        send: SendEvent,
        active: asyncio.Semaphore,
    ) -> None:
        """Send events with the lane's `name`; `active` limits the socket's running responses."""
        self.name = name
        self.latest: str | None = None
        """The id of the last response that has begun."""
        self._service = service
        self._log = log
        self._headers = headers
        self._send = send
        self._active = active
        self._waiting: deque[_Waiting] = deque()
        self._live: Live | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Return the number of requests that have not begun."""
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of these requests, as they came."""
        return sum(waiting.size for waiting in self._waiting)

    def add(self, body: ResponseRequest, size: int, arrived_at: float, *, forks: bool) -> None:
        """Handle a request of `size` bytes after those before it, if all that wait have room."""
        self._service.note_ignored(body.ignored)
        self._service.waiting_requests.take(size, self._log.tenant)
        self._waiting.append(_Waiting(body, forks, arrived_at, size))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def has(self, response: str | None) -> bool:
        """Return whether a response is running here; None stands for any."""
        live = self._live
        return live is not None and response in (None, live.state.id)

    async def cancel(self) -> None:
        """End the running response; its last event follows."""
        if self._live is not None:
            await self._live.cancel()

    async def idle(self) -> None:
        """Wait until all requests have been handled."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """End the running response, and forget the requests that wait."""
        while self._waiting:
            self._next()
        task, self._task = self._task, None  # if it is cancelled, its error holds this lane
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    async def _run(self) -> None:
        while self._waiting:
            async with self._active:
                refusal = None
                try:
                    await unless_stalled(self._service, self._answer(self._next()))
                except Exception as error:
                    refusal = self._refusal(error)
                if refusal is not None:  # only now: the error holds its request
                    await self._send(self._written(refusal))

    def _written(self, event: dict[str, Any]) -> bytes:
        return written(event, self.name)

    def _refusal(self, error: Exception) -> dict[str, Any]:
        known = from_exception(error)
        if known is None:
            logger.exception("a socket's request: an internal error")
            known = internal()
        self._log.finish = known.code
        return error_event(known)

    def _next(self) -> _Waiting:
        """Return the next request, which does not wait any longer."""
        waiting = self._waiting.popleft()
        self._service.waiting_requests.give_back(waiting.size, self._log.tenant)
        return waiting

    async def _answer(self, asked: _Waiting) -> None:
        service = self._service
        service.check_ready()
        live = await create(
            service,
            asked.body,
            self._log,
            self._headers,
            waited=(asked.arrived_at, asked.size),
            forks=asked.forks,
        )
        del asked  # it may be long
        self._live = live
        try:
            await live.admitted(service.config.keepalive_s)
            self.latest = live.state.id
            async for events in live.follow(service.pool, self._written):
                for event in events:
                    await self._send(event)
        finally:
            self._live = None
            await live.cancel()
            self._log.choices += 1
            live.note(self._log)
