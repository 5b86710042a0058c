"""A response whose work is cancelled as soon as its client disconnects, at any point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from sinkstream.server.errors import ApiError, StreamAborted
from sinkstream.server.request_log import Scope, request_log_of
from sinkstream.server.running import as_api_error
from sinkstream.server.server_sent_events import Send, error_event

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Work = Callable[[Send], Awaitable[None]]


class Answer(Response):
    """Runs `work`, which sends the whole response."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond; end quietly if the client disconnects.

        Raises:
            ApiError: The work failed before it sent anything.
            StreamAborted: It failed later; the client has been told.
        """
        log = request_log_of(scope)
        work = asyncio.ensure_future(self._run(send, scope))
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if log.is_complete:  # what follows the last byte is no departure
                await asyncio.wait({work})
        finally:
            leaving.cancel()
            work.cancel()  # no effect if it has ended
            await asyncio.wait({work, leaving})
        if work.cancelled():
            log.finish = "client_left"
            return
        work.result()

    async def _run(self, send: Send, scope: Scope) -> None:
        try:
            await self._work(send)
        except Exception as error:
            log = request_log_of(scope)
            known: ApiError = as_api_error(error)
            log.finish = known.code
            if log.status == 0:
                if known is error:  # as its own cause it would hold itself
                    raise
                raise known from error
            body = error_event(known.as_json())
            await send({"type": "http.response.body", "body": body, "more_body": True})
            raise StreamAborted from error


async def until_left(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send a whole response with the status 200."""
    length = (b"content-length", str(len(body)).encode())
    head = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
