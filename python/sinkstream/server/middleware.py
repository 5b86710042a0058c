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
from functools import partial
from typing import Any

from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from sinkstream.server.admission import CALLER, refusal
from sinkstream.server.answer import Receive
from sinkstream.server.content_codings import decoded
from sinkstream.server.errors import (
    ApiError,
    StreamAborted,
    from_exception,
    internal,
    too_large,
    unavailable,
)
from sinkstream.server.head_checks import HeadChecks, content_codings
from sinkstream.server.http_limits import CONNECTION, Connection
from sinkstream.server.idempotency import Repeats, key_of
from sinkstream.server.request_log import KEY, RequestLog, Scope, is_probe
from sinkstream.server.server_sent_events import EVENT_HEADERS, Send, error_event
from sinkstream.server.service import Service
from sinkstream.server.stalled_engine import unless_stalled

logger = logging.getLogger("sinkstream.server")

App = Callable[[Scope, Receive, Send], Awaitable[None]]
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{1,64}")
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, idempotency-key, x-api-key, x-session-id",
    ),
    (b"access-control-max-age", b"600"),
)


_STREAM = EVENT_HEADERS[0]
_LAST_WRITE_S = 1.0


class ClientLeft(Exception):
    """The client disconnected before its request was complete."""


class Middleware:
    """Wraps an ASGI app."""

    def __init__(
        self, app: App, service: Service, openapi: Callable[[], dict[str, Any]] = dict
    ) -> None:
        """Wrap `app`, which `openapi` describes."""
        self.openapi = openapi
        self._app = app
        self._service = service
        self._repeats = Repeats(service.weights)
        self._checks = HeadChecks(service.config, service.weights)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        most_s = self._service.config.max_reply_s or None
        log = RequestLog(_request_id(scope), timeout_s=most_s)
        scope[KEY] = log
        is_socket = scope["type"] == "websocket"
        self._service.open_requests += not is_socket
        try:
            await self._service.slices.turn()
            await self._answer(scope, receive, self._send_to_client(send, scope, log), log)
        finally:
            self._service.open_requests -= not is_socket
            if log.is_counted:
                self._service.requests_of_keys.give_back(log.tenant)
            log.drop_body()
            self._note(scope, log, time.perf_counter() - started_at)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, log: RequestLog) -> None:
        try:
            self._check_connections(scope)
            log.tenant = self._checks.check(scope)
            CALLER.set(log.tenant)
            self._count_request(scope, log)
            log.on_dropped = partial(self._service.bodies.give_back, tenant=log.tenant)
            if scope.get("method") == "OPTIONS" and self._checks.allowed_origin(scope["headers"]):
                await _respond(scope, receive, send, 204, b"", _PREFLIGHT)
                return
            if scope.get("method") == "POST":
                await self._read_body(receive, log)
                await self._decode_body(content_codings(scope["headers"]), log)
            if scope["type"] == "http":
                await self._run(scope, receive, send, log)
            else:
                await self._app(scope, receive, self._send_from_app(send, log))
        except StreamAborted:
            pass  # the response stays incomplete, so that the server cuts the connection
        except (ClientLeft, ClientDisconnected, WebSocketDisconnect):
            log.note_left()
        except Exception as error:
            # In a frame of its own: as a variable here, the error would hold itself.
            await _refuse(error, scope, receive, send, log)

    async def _run(self, scope: Scope, receive: Receive, send: Send, log: RequestLog) -> None:
        """Run the app for a request; if the engine stalls, respond without the app.

        An `ApiError` leaves this only before the response; in the middle of one, the client is
        told, and the response is aborted.
        """
        from_app = self._send_from_app(send, log)
        if is_probe(scope["path"]):  # it waits for nothing, and says whether the engine stalls
            await self._app(scope, receive, from_app)
            return
        key = key_of(scope)
        work = (
            self._app(scope, receive, from_app)
            if key is None
            else self._repeats.run(self._app, key, scope, receive, from_app)
        )
        try:
            await unless_stalled(self._service, work)
        except ApiError as error:
            log.is_left = True
            if log.status == 0:
                error.headers += ((b"connection", b"close"),)
                raise
            log.finish = error.code
            if log.is_stream:
                body = error_event(error.as_json())
                with suppress(TimeoutError):  # the client does not read
                    async with asyncio.timeout(_LAST_WRITE_S):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            raise StreamAborted from error

    def _check_connections(self, scope: Scope) -> None:
        """Refuse requests over a connection beyond the limit, except health checks."""
        if _connection_of(scope).is_surplus and scope["path"] not in ("/health", "/v1/health"):
            limit = self._service.connections.limit
            rule = f"server: at most {limit} connections can be open. Try again later."
            raise unavailable("connections", rule)

    def _count_request(self, scope: Scope, log: RequestLog) -> None:
        """Count what a key has in progress, if there are others: each takes a connection."""
        shares = self._service.requests_of_keys
        is_health_check = is_probe(scope["path"]) and scope.get("method") in ("GET", "HEAD")
        if shares.reserve == 0 or is_health_check:
            return
        if not shares.has_room(log.tenant):
            rule = f"at most {shares.limit} requests and sockets can be in progress"
            raise refusal(shares, log.tenant, 1, rule, "and this is one more")
        shares.take(log.tenant)
        log.is_counted = True

    async def _read_body(self, receive: Receive, log: RequestLog) -> None:
        config, held = self._service.config, bytearray()
        try:
            async with asyncio.timeout(config.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    part = message.get("body", b"")
                    self._service.bodies.take(len(part), log.tenant)
                    held += part
                    if len(held) > config.max_body_bytes:
                        raise too_large(f"at most {config.max_body_bytes} bytes")
                    if not message.get("more_body", False):
                        log.body, held = held, bytearray()
                        return
        except TimeoutError:
            raise ApiError(
                408,
                "invalid_request_error",
                "body_timeout",
                f"body: must arrive within {config.body_timeout_s:g} s, but has not.",
            ) from None
        finally:
            self._service.bodies.give_back(len(held), log.tenant)
            held.clear()  # an error would hold it

    async def _decode_body(self, codings: list[str], log: RequestLog) -> None:
        """Undo the codings of a body; each part that this makes is counted before the next."""
        if not codings:
            return
        bodies, pool = self._service.bodies, self._service.pool
        parts = decoded(log.body, codings, self._service.config.max_body_bytes)
        held = bytearray()
        try:
            while part := await pool.run(partial(next, parts, b"")):
                bodies.take(len(part), log.tenant)
                held += part
            log.drop_body()
            log.body, held = held, bytearray()
        finally:
            bodies.give_back(len(held), log.tenant)
            held.clear()

    def _send_to_client(self, send: Send, scope: Scope, log: RequestLog) -> Send:
        """Return `send` with the headers of every response, noting the status."""
        headers = [(b"x-request-id", log.request_id.encode())]
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

        async def to_client(message: dict[str, object]) -> None:
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                log.status = int(str(message["status"]))
                log.is_stream = _STREAM in _pairs(message)
                names = ", ".join(log.ignored).encode()
                ignored = [(b"x-sinkstream-ignored", names)] if names else []
                message = {**message, "headers": [*_pairs(message), *headers, *ignored]}
            elif kind == "websocket.accept":
                log.status = 101
                message = {**message, "headers": [*_pairs(message), *headers]}
            elif kind == "http.response.body" and not message.get("more_body", False):
                log.is_complete = True
            await send(message)

        return to_client  # type: ignore[return-value]

    def _send_from_app(self, send: Send, log: RequestLog) -> Send:
        """Return `send` as the app calls it: it waits for its turn, and ends once the app is left.

        What waits has not been sent, so that the middleware can still respond if the engine stalls.
        """

        async def from_app(message: MutableMapping[str, Any]) -> None:
            await self._service.sends.turn()
            if not log.is_left:
                await send(message)

        return from_app

    def _note(self, scope: Scope, log: RequestLog, seconds: float) -> None:
        if _connection_of(scope).is_stalled:
            log.finish = "client_stalled"
        route = getattr(scope.get("route"), "path", "none")
        self._service.count_response(route, log)
        self._service.note_ignored(log.ignored)
        log.write(scope.get("method", "SOCKET"), route, seconds)


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
    error: Exception, scope: Scope, receive: Receive, send: Send, log: RequestLog
) -> None:
    """Respond with an error, unless the response has begun."""
    known = from_exception(error)
    if known is None:
        logger.exception("request %s: an internal error", log.request_id)
        known = internal()
    log.finish = known.code
    if log.status == 0:
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
