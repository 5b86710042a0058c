"""Responses: one whose work is cancelled as soon as its client disconnects, and JSON.

What may be long is written on the pool, in parts: a call of the JSON writer holds the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeVar

import orjson
from starlette.responses import Response

from sinkstream.server.errors import ApiError, StreamAborted, from_exception
from sinkstream.server.pool import Pool
from sinkstream.server.request_log import Scope, request_log_of
from sinkstream.server.running_replies import as_api_error
from sinkstream.server.server_sent_events import Send, error_event

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Work = Callable[[Send], Awaitable[None]]
_T = TypeVar("_T")
_WRITTEN_AT_ONCE = 4096  # items of an array


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


def json_response(pool: Pool, make: Callable[[], Any]) -> Answer:
    """Return what a blocking call returns, as JSON; the call ends if the client leaves.

    `prompt` is the messages in its errors.
    """

    async def work(send: Send) -> None:
        try:
            body = await pool.run(lambda: orjson.dumps(make()))
        except Exception as error:
            known = from_exception(error, {"prompt": "messages"})
            raise known or error from None
        await send_json(send, body)

    return Answer(work)


async def send_json(send: Send, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send a whole response with the status 200."""
    length = (b"content-length", str(len(body)).encode())
    head = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
