"""Responses: one whose work is cancelled as soon as its client disconnects, and JSON.

What may be long is written on the pool, in parts: a call of the JSON writer holds the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import orjson
from starlette.responses import Response

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.server.errors import ApiError, StreamAborted, from_exception
from sinkstream.server.request_log import RequestLog, Scope, request_log_of
from sinkstream.server.running_replies import as_api_error, in_time
from sinkstream.server.server_sent_events import Send, error_event
from sinkstream.server.service import Service

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Work = Callable[[Send], Awaitable[None]]
_T = TypeVar("_T")
_WRITTEN_AT_ONCE = 4096  # items of an array
_SENT_AT_ONCE = 1 << 16  # bytes
_MESSAGES = {"prompt": "messages"}


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
            log.note_left()
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


def json_array(
    items: Sequence[_T], write: Callable[[_T], Any] = lambda item: item
) -> orjson.Fragment:
    """Return items as a part of a JSON text, each as `write` returns it."""
    parts = (
        orjson.dumps([write(item) for item in items[begin : begin + _WRITTEN_AT_ONCE]])[1:-1]
        for begin in range(0, len(items), _WRITTEN_AT_ONCE)
    )
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def json_response(
    service: Service,
    log: RequestLog,
    make: Callable[[], Any],
    names: Mapping[str, str] = _MESSAGES,
) -> Answer:
    """Return what a blocking call returns, as JSON.

    The call ends if the client leaves, or with the time of its request, which `log` knows. `names`
    are the request's fields, for errors, by the arguments that they are.
    """

    async def work(send: Send) -> None:
        try:
            async with in_time(log.arrived_at, log.timeout_s):
                body = await service.pool.run(lambda: orjson.dumps(make()))
        except ReadingCancelled:
            raise service.reason_of_cancel() from None
        except Exception as error:
            raise from_exception(error, names) or error from None
        await send_counted(service, log, send, body)

    return Answer(work)


async def send_counted(
    service: Service,
    log: RequestLog,
    send: Send,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    """Send a whole response; a long one counts until its client has read it.

    Raises:
        ApiError: Those that are sent now have no room for it.
    """
    size = len(body) if len(body) > _SENT_AT_ONCE else 0
    with service.unread.taken(min(size, service.largest_unread), log.tenant):
        await send_json(send, body, headers)


async def send_json(send: Send, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send a whole response with the status 200, and return when nearly all of it is read."""
    length = (b"content-length", str(len(body)).encode())
    head = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    # A call waits until the kernel has taken what was sent before.
    for begin in range(0, max(1, len(body)), _SENT_AT_ONCE):
        end = begin + _SENT_AT_ONCE
        more = end < len(body)
        await send({"type": "http.response.body", "body": body[begin:end], "more_body": more})
