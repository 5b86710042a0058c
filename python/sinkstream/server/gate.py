"""The outermost layer of the app: refuses, reads bodies, counts, and writes one line per request.

No failure leaves it as an exception, and no text from a prompt or a reply is logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from sinkstream.server.answer import Receive
from sinkstream.server.connections import Connection
from sinkstream.server.errors import (
    ApiError,
    StreamAborted,
    from_exception,
    internal,
    unavailable,
)
from sinkstream.server.exchange import KEY, Exchange, Scope
from sinkstream.server.frames import error_event
from sinkstream.server.head_checks import HeadChecks, too_large
from sinkstream.server.protocol import CONNECTION
from sinkstream.server.service import Service
from sinkstream.server.stall import unless_stalled
from sinkstream.server.writer import EVENT_HEADERS, Send

logger = logging.getLogger("sinkstream.server")

App = Callable[[Scope, Receive, Send], Awaitable[None]]
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{1,64}")
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-session-id"),
    (b"access-control-max-age", b"600"),
)


_STREAM = EVENT_HEADERS[0]
_LAST_WRITE_S = 1.0


class ClientLeft(Exception):
    """The client disconnected before its request was complete."""


class Gate:
    """Wraps an ASGI app."""

    def __init__(
        self, app: App, service: Service, openapi: Callable[[], dict[str, Any]] = dict
    ) -> None:
        """Wrap `app`, which `openapi` describes."""
        self.openapi = openapi
        self._app = app
        self._service = service
        self._checks = HeadChecks(service.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        exchange = Exchange(_request_id(scope), on_taken=self._service.bodies.give_back)
        scope[KEY] = exchange
        is_socket = scope["type"] == "websocket"
        self._service.open_requests += not is_socket
        self._service.open_sockets += is_socket
        try:
            await self._service.slices.turn()
            await self._answer(scope, receive, self._observed(scope, exchange, send), exchange)
        finally:
            self._service.open_requests -= not is_socket
            self._service.open_sockets -= is_socket
            exchange.take_body()
            self._note(scope, exchange, time.perf_counter() - started_at)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        try:
            self._check_connections(scope)
            exchange.tenant = self._checks.check(scope)
            if scope.get("method") == "OPTIONS" and self._checks.allowed_origin(scope["headers"]):
                await _respond(scope, receive, send, 204, b"", _PREFLIGHT)
                return
            if scope.get("method") == "POST":
                await self._read_body(receive, exchange)
            if scope["type"] == "http":
                await self._run(scope, receive, send, exchange)
            else:
                await self._app(scope, receive, self._of_app(send, exchange))
        except StreamAborted:
            pass  # the response stays incomplete, so that the server cuts the connection
        except (ClientLeft, ClientDisconnected, WebSocketDisconnect):
            exchange.finish = "client_left"
        except Exception as error:
            # In a frame of its own: as a variable here, the error would hold itself.
            await _refuse(error, scope, receive, send, exchange)

    async def _run(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        """Run the app for a request; if the engine stalls, respond without the app.

        Raises:
            StreamAborted: The client has been told, in the middle of the response.
            Exception: Any error of the app; and `stalled` before the response.
        """
        of_app = self._of_app(send, exchange)
        try:
            await unless_stalled(self._service, self._app(scope, receive, of_app))
        except ApiError as error:
            exchange.is_left = True
            if exchange.status == 0:
                error.headers += ((b"connection", b"close"),)
                raise
            exchange.finish = error.code
            if exchange.is_stream:
                body = error_event(error.as_json())
                with suppress(TimeoutError):  # the client does not read
                    async with asyncio.timeout(_LAST_WRITE_S):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            raise StreamAborted from error

    def _check_connections(self, scope: Scope) -> None:
        """Refuse requests over a connection beyond the limit, except health checks.

        Raises:
            ApiError: The connection is beyond the limit.
        """
        if _connection_of(scope).is_surplus and scope["path"] not in ("/health", "/v1/health"):
            limit = self._service.connections.limit
            rule = f"server: at most {limit} connections can be open. Try again later."
            raise unavailable("connections", rule)

    async def _read_body(self, receive: Receive, exchange: Exchange) -> None:
        config, held = self._service.config, bytearray()
        try:
            async with asyncio.timeout(config.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    part = message.get("body", b"")
                    self._service.bodies.take(len(part))
                    held += part
                    if len(held) > config.max_body_bytes:
                        raise too_large(config.max_body_bytes)
                    if not message.get("more_body", False):
                        exchange.body, held = held, bytearray()
                        return
        except TimeoutError:
            raise ApiError(
                408,
                "invalid_request_error",
                "body_timeout",
                f"body: must arrive within {config.body_timeout_s:g} s, but has not.",
            ) from None
        finally:
            self._service.bodies.give_back(len(held))
            held.clear()  # an error would hold it

    def _observed(self, scope: Scope, exchange: Exchange, send: Send) -> Send:
        """Return `send` with the headers of every response, noting the status."""
        headers = [(b"x-request-id", exchange.request_id.encode())]
        origin = self._checks.allowed_origin(scope["headers"])
        if origin is not None:
            headers += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", b"x-request-id, retry-after"),
            ]
        if self._service.config.cors_origins:
            headers.append((b"vary", b"Origin"))

        if _connection_of(scope).is_surplus:
            headers.append((b"connection", b"close"))

        async def observed(message: dict[str, object]) -> None:
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                exchange.status = int(str(message["status"]))
                exchange.is_stream = _STREAM in _pairs(message)
                message = {**message, "headers": [*_pairs(message), *headers]}
            elif kind == "websocket.accept":
                exchange.status = 101
                message = {**message, "headers": [*_pairs(message), *headers]}
            elif kind == "http.response.body" and not message.get("more_body", False):
                exchange.is_complete = True
            await send(message)

        return observed  # type: ignore[return-value]

    def _of_app(self, send: Send, exchange: Exchange) -> Send:
        """Return `send` as the app calls it: it waits for its turn, and ends once the app is left.

        What waits has not been sent, so that the gate can still respond if the engine stalls.
        """

        async def of_app(message: MutableMapping[str, Any]) -> None:
            await self._service.sends.turn()
            if not exchange.is_left:
                await send(message)

        return of_app

    def _note(self, scope: Scope, exchange: Exchange, seconds: float) -> None:
        if _connection_of(scope).is_stalled:
            exchange.finish = "client_stalled"
        route = getattr(scope.get("route"), "path", "none")
        self._service.responses[route, exchange.status] += 1
        logger.info(
            "%s %s %s %d %.3fs queued=%.3fs choices=%d prompt_tokens=%d generated_tokens=%d "
            "finish=%s",
            exchange.request_id,
            scope.get("method", "SOCKET"),
            route,
            exchange.status,
            seconds,
            exchange.queued_s,
            exchange.choices,
            exchange.prompt_tokens,
            exchange.generated_tokens,
            exchange.finish or "none",
        )


def _connection_of(scope: Scope) -> Connection:
    connection: Connection = scope["state"][CONNECTION]
    return connection


def _pairs(message: dict[str, object]) -> list[tuple[bytes, bytes]]:
    pairs: list[tuple[bytes, bytes]] = list(message.get("headers", ()))  # type: ignore[call-overload]
    return pairs


def _request_id(scope: Scope) -> str:
    """Return the client's id for its request, or a new one if that would be harmful in a log."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return uuid.uuid4().hex


async def _refuse(
    error: Exception, scope: Scope, receive: Receive, send: Send, exchange: Exchange
) -> None:
    """Respond with an error, unless the response has begun."""
    known = from_exception(error)
    if known is None:
        logger.exception("request %s: an internal error", exchange.request_id)
        known = internal()
    exchange.finish = known.code
    if exchange.status == 0:
        head = ((b"content-type", b"application/json"), *known.headers)
        await _respond(scope, receive, send, known.status, known.as_json(), head)


async def _respond(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    """Send a whole response; to a WebSocket, instead of opening it."""
    prefix = ""
    if scope["type"] == "websocket":
        prefix = "websocket."
        await receive()  # websocket.connect
    if status != 204:
        headers = (*headers, (b"content-length", str(len(body)).encode()))
    await send({"type": f"{prefix}http.response.start", "status": status, "headers": list(headers)})
    await send({"type": f"{prefix}http.response.body", "body": body, "more_body": False})
