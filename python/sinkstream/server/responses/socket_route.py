"""`WS /v1/responses`: many responses over one socket, in lanes.

A client sends `response.create`, with a `stream_id` that names a lane; events repeat it. Memory is
bounded: the number of lanes, the number and size of waiting requests, and the size of messages are
limited, and a client that does not read is not sent more.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sinkstream.server.admission import refusal
from sinkstream.server.errors import ApiError, invalid, not_supported
from sinkstream.server.parsing import as_kind, object_of
from sinkstream.server.pool import Pool
from sinkstream.server.request_bodies import SMALL_BYTES
from sinkstream.server.request_log import request_log_of
from sinkstream.server.responses.response_bodies import ResponseRequest
from sinkstream.server.responses.socket_lane import Lane, error_event, written
from sinkstream.server.running_replies import in_time
from sinkstream.server.service import Service
from sinkstream.server.socket_limits import MESSAGES, HeldMessages

LANE = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
"""The name of a lane."""
MAX_LANES = 32  # with a name
MAX_ACTIVE = 16  # responses of a socket
MAX_WAITING = 64
_GOING_AWAY = 1001


class Create(ResponseRequest):
    """`response.create`."""

    stream_id: str | None = None
    generate: bool | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """`response.cancel`."""

    response: Any
    """The id of the response; None for the one that is running on a lane."""
    lane: Any


Content = Create | Cancel | ApiError
"""What a message asks for, or why it is refused."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message of a client."""

    lane: str | None
    """The lane that it names, if it names one that may exist."""
    content: Content


async def read(
    data: str | bytes, pool: Pool, arrived_at: float = 0.0, timeout_s: float | None = None
) -> Incoming:
    """Parse a message; a long one on the pool, where it may have to wait.

    If that takes longer than `timeout_s` from its arrival, it is refused.
    """
    if len(data) <= SMALL_BYTES:
        return _read(data)
    try:
        async with in_time(arrived_at, timeout_s):
            return await pool.run(partial(_read, data))
    except ApiError as error:
        return Incoming(None, replace(error))


def _read(data: str | bytes) -> Incoming:
    lane = None
    try:
        event = object_of(data)
        lane = _lane_of(event)
        return Incoming(lane, _content_of(event, data))
    except ApiError as error:
        return Incoming(lane, replace(error))  # the one that was raised refers to the message


def _content_of(event: dict[str, Any], data: str | bytes) -> Create | Cancel:
    kind = event.get("type")
    if kind == "response.create":
        create = as_kind(event, Create)
        create.note_size(data)
        return create
    if kind == "response.cancel":
        return Cancel(event.get("response_id"), event.get("stream_id"))
    raise invalid(
        'body: `type` must be "response.create" or "response.cancel".', "type", "unknown_event_type"
    )


def _lane_of(event: dict[str, Any]) -> str | None:
    name = event.get("stream_id")
    return name if isinstance(name, str) and LANE.fullmatch(name) else None


async def serve_socket(websocket: WebSocket) -> None:
    """Handle the requests of one socket until either side closes it."""
    service: Service = websocket.app.state.service
    tenant, sockets = request_log_of(websocket.scope).tenant, service.open_sockets
    try:
        service.check_ready()
        if not sockets.has_room(tenant):
            rule = f"at most {sockets.limit} sockets can be open"
            error = refusal(sockets, tenant, 1, rule, "and this is one more")
            raise replace(error, code="websocket_connection_limit_reached")
    except ApiError as error:
        response = Response(error.as_json(), error.status, media_type="application/json")
        response.raw_headers.extend(error.headers)
        await websocket.send_denial_response(response)
        return
    sockets.take(tenant)
    try:
        await websocket.accept()
        await _Socket(websocket, service).run()
    finally:
        sockets.give_back(tenant)


class _Socket:
    def __init__(self, websocket: WebSocket, service: Service) -> None:
        self._websocket = websocket
        self._service = service
        self._log = request_log_of(websocket.scope)
        self._held: HeldMessages | None = websocket.scope["state"].get(MESSAGES)
        if self._held is not None:
            self._held.belong_to(self._log.tenant)
        self._sending = asyncio.Lock()
        self._active = asyncio.Semaphore(MAX_ACTIVE)
        self._lanes: dict[str | None, Lane] = {}

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        draining = asyncio.create_task(self._service.drain_begins.wait())
        try:
            await asyncio.wait({reading, draining}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                idle = asyncio.create_task(self._idle())
                await asyncio.wait({reading, idle}, return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
                if not reading.done():
                    await self._websocket.close(_GOING_AWAY)
        finally:
            reading.cancel()
            draining.cancel()
            for lane in self._lanes.values():
                await lane.close()
            self._lanes.clear()  # each refers to this socket
        await asyncio.wait({reading, draining})

    async def _idle(self) -> None:
        for lane in list(self._lanes.values()):
            await lane.idle()

    async def _read(self) -> None:
        while await self._handle_next():
            pass

    async def _handle_next(self) -> bool:
        """Handle the next message; return False if the socket is closed.

        Nothing of the message is held here while its lane waits, or the client does not read.
        """
        incoming, size, arrived_at = await self._next()
        if incoming is None:
            return False
        lane = incoming.lane
        refusal = await self._handle(incoming.content, size, arrived_at)
        del incoming
        if refusal is not None:
            await self._send(written(refusal, lane))
        return True

    async def _next(self) -> tuple[Incoming | None, int, float]:
        """Return the next message, which no longer counts; None after the last one.

        Also return its bytes, and when it arrived.
        """
        message = await self._websocket.receive()
        arrived_at = time.monotonic()
        if message["type"] == "websocket.disconnect":
            return None, 0, arrived_at
        text = message.get("text")
        data = message["bytes"] if text is None else text
        incoming = await read(data, self._service.pool, arrived_at, self._log.timeout_s)
        size = len(data) if self._held is None else self._held.drop()
        return incoming, size, arrived_at

    async def _handle(
        self, content: Content, size: int, arrived_at: float
    ) -> dict[str, Any] | None:
        """Do what a message asks for; return the event for one that is refused."""
        try:
            if isinstance(content, ApiError):
                return error_event(content)
            if isinstance(content, Create):
                self._create(content, size, arrived_at)
            else:
                await self._cancel(content)
        except ApiError as error:
            return error_event(error)
        return None

    def _create(self, body: Create, size: int, arrived_at: float) -> None:
        if body.background:
            raise invalid("body: `background` must not be true on a socket.", "background")
        if body.generate is False:
            raise not_supported("a response without a reply", "generate")
        self._check_waiting(size)
        lane = self._lane(body.stream_id)
        previous = body.previous_response_id
        others = [one.latest for one in self._lanes.values() if one is not lane]
        lane.add(body, size, arrived_at, forks=previous is not None and previous in others)

    def _check_waiting(self, size: int) -> None:
        """Refuse a request of `size` bytes if those that wait are too many or too large."""
        lanes, most_bytes = self._lanes.values(), self._service.config.max_body_bytes
        if sum(lane.waiting for lane in lanes) >= MAX_WAITING:
            rule = f"at most {MAX_WAITING} requests can wait on one socket."
        elif sum(lane.waiting_bytes for lane in lanes) + size > most_bytes:
            rule = f"requests that wait on one socket can have at most {most_bytes} bytes in total."
        else:
            return
        raise ApiError(429, "rate_limit_error", "capacity", f"server: {rule}")

    def _lane(self, name: str | None) -> Lane:
        if name is not None and not LANE.fullmatch(name):
            raise invalid(
                "body: `stream_id` must have 1 to 256 ASCII letters, digits, dots, underscores or "
                "hyphens.",
                "stream_id",
                "invalid_stream_id",
            )
        if name not in self._lanes:
            if len(self._lanes) - (None in self._lanes) >= MAX_LANES and name is not None:
                raise invalid(
                    f"body: `stream_id` must be one of {MAX_LANES} on a socket, but is one more.",
                    "stream_id",
                    "websocket_stream_limit_reached",
                )
            self._lanes[name] = Lane(
                name,
                self._service,
                self._log,
                self._websocket.headers,
                self._send,
                self._active,
            )
        return self._lanes[name]

    async def _cancel(self, cancel: Cancel) -> None:
        response = cancel.response
        lanes = (
            [lane for key, lane in self._lanes.items() if key == cancel.lane]
            if response is None
            else list(self._lanes.values())
        )
        lane = next((lane for lane in lanes if lane.has(response)), None)
        if lane is None:
            raise ApiError(
                404,
                "invalid_request_error",
                "response_not_found",
                "body: `response_id` must name a response in progress on this socket.",
                "response_id",
            )
        await lane.cancel()

    async def _send(self, event: bytes) -> None:
        text = event.decode()
        async with self._sending:
            if self._websocket.application_state is WebSocketState.CONNECTED:
                with suppress(WebSocketDisconnect):  # `_read` is told, too
                    await self._websocket.send_text(text)
