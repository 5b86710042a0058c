"""Forwards requests that name a stored response to the server that has its conversation.

This is for clients without a session header. With one, the load balancer has chosen this server,
and the conversation moves here. If the owner does not answer, the conversation is taken over.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import httpx
from starlette.datastructures import Headers

from sinkstream.cluster.owners import Replica
from sinkstream.cluster.peers.peer_requests import HEADER, fence_of, is_peer
from sinkstream.server.answer import Receive, until_left
from sinkstream.server.errors import ApiError, StreamAborted
from sinkstream.server.middleware import App, ClientLeft
from sinkstream.server.parsing import object_of, session_key
from sinkstream.server.request_bodies import SMALL_BYTES
from sinkstream.server.request_log import RequestLog, Scope, request_log_of
from sinkstream.server.server_sent_events import EVENT_HEADERS, Send
from sinkstream.server.service import Service

logger = logging.getLogger("sinkstream.server")

_CREATE = re.compile(r"(/v1)?/responses/?")
_OF_ONE = re.compile(r"(?:/v1)?/responses/(resp_[^/]+)(?:/.*)?")
Header = tuple[bytes, bytes]
_METHODS = ("DELETE", "GET", "POST")  # a WebSocket has none
_FIELD = b"previous_response_id"
# Of the connection, or written anew.
_OWN = frozenset(
    b"connection content-encoding content-length date expect keep-alive proxy-connection server te "
    b"trailer transfer-encoding upgrade vary x-request-id".split()
) | {HEADER}
_CONNECT_S = 0.5
# A peer whose host is down is noticed within about 20 s, even while nothing is sent.
_LIFE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
]


class PeerGone(Exception):
    """The peer cannot be reached, or broke the connection."""


class PeerResponse:
    """A response whose head has arrived."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = [(name.lower(), value) for name, value in response.headers.raw]

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without decoding it.

        Raises:
            PeerGone: The body breaks off.
        """
        try:
            async for part in self._response.aiter_raw():
                yield part
        except httpx.TransportError as error:
            raise PeerGone(str(error)) from None


class _Body(httpx.AsyncByteStream):
    """A body that is let go once it has been sent: the response may take long."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body, self._body = self._body, b""
        yield body


class Peers:
    """Connections to peers, one for each request. Belongs to one event loop."""

    def __init__(self) -> None:
        self._verify = ssl.create_default_context()  # read once: it takes longer than a request

    @asynccontextmanager
    async def fetch(
        self, address: str, method: str, target: bytes, headers: Sequence[Header], body: bytes
    ) -> AsyncIterator[PeerResponse]:
        """Send a request, and give its response once the head has arrived.

        Args:
            address: `http://host:port` of the peer.
            method: The method.
            target: The path and the query, which are sent exactly so.
            headers: All headers but `connection` and `content-length`.
            body: The body.

        Raises:
            PeerGone: The peer cannot be reached, or breaks the connection.
        """
        own = [(b"connection", b"close"), (b"content-length", b"%d" % len(body))]
        # A URL would resolve the dots of a path: a client of ours could then name one that is only
        # for peers. And `httpx.AsyncClient` would add headers of its own.
        further = {
            "target": target,
            "timeout": httpx.Timeout(None, connect=_CONNECT_S).as_dict(),
        }
        request = httpx.Request(
            method, address, headers=[*headers, *own], stream=_Body(body), extensions=further
        )
        del body
        transport = httpx.AsyncHTTPTransport(verify=self._verify, socket_options=_LIFE)
        async with transport:
            try:
                response = await transport.handle_async_request(request)
            except httpx.TransportError as error:
                raise PeerGone(str(error)) from None
            try:
                yield PeerResponse(response)
            finally:
                await response.aclose()


class Forwarding:
    """Between the middleware, which has checked and read the request, and the routes."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self._service = service
        self._peers = Peers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request here, or let its owner do so.

        Raises:
            ClientLeft: The client disconnected while the owner replied.
            StreamAborted: The owner broke off in the middle of its response.
        """
        owner = await self._owner(scope)
        if owner is None or not await self._forward(owner, scope, receive, send):
            await self._app(scope, receive, send)

    async def _owner(self, scope: Scope) -> Replica | None:
        """Return the living server that owns what a request names; None if it is this one."""
        service = self._service
        if scope.get("method") not in _METHODS or is_peer(scope, service.config.peer_secret):
            return None
        fence = fence_of(service)
        if service.trouble is not None or fence is None:
            return None
        name = await self._name(scope)
        if name is None or service.live.find(request_log_of(scope).tenant, name) is not None:
            return None
        owner = await service.pool.run(partial(fence.owner_of, name))
        return owner if owner is not None and owner.address else None

    async def _name(self, scope: Scope) -> str | None:
        if found := _OF_ONE.fullmatch(scope["path"]):
            return found[1]
        body = request_log_of(scope).body
        if not _CREATE.fullmatch(scope["path"]) or _FIELD not in body:
            return None
        if session_key(Headers(raw=scope["headers"]), None) is not None:
            return None
        read = partial(_previous_in, body)
        return read() if len(body) <= SMALL_BYTES else await self._service.pool.run(read)

    async def _forward(self, owner: Replica, scope: Scope, receive: Receive, send: Send) -> bool:
        """Return whether the owner has responded."""
        log = request_log_of(scope)
        target: bytes = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = _passed_on(scope["headers"], _OWN)
        headers += [
            (HEADER, self._service.config.peer_secret.encode()),
            (b"x-request-id", log.request_id.encode()),
        ]
        passing = asyncio.ensure_future(
            self._pass(owner, scope["method"], target, headers, log, send)
        )
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not passing.done() and not log.is_complete:
                raise ClientLeft
            return await passing
        except PeerGone as error:
            logger.info("%s does not answer: %s", owner.name, error)
            if log.status:
                raise StreamAborted from error
            return False
        finally:
            passing.cancel()
            leaving.cancel()
            await asyncio.wait({passing, leaving})

    async def _pass(
        self,
        owner: Replica,
        method: str,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        log: RequestLog,
        send: Send,
    ) -> bool:
        body = bytes(log.body)
        async with self._peers.fetch(owner.address, method, target, headers, body) as response:
            del body
            if response.status == 503:  # it drains, or is no server of ours
                return False
            log.drop_body()  # the reply may take long, and others wait for the memory
            await _start(response, send)
            async for part in response.parts():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def _start(response: PeerResponse, send: Send) -> None:
    kept = [
        pair
        for pair in _passed_on(response.headers, _OWN - {b"content-length"})
        if not pair[0].startswith(b"access-control-")
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": kept})
    if EVENT_HEADERS[0] in kept:
        await send({"type": "http.response.body", "body": b"", "more_body": True})


def _passed_on(headers: Iterable[Header], own: frozenset[bytes]) -> list[Header]:
    """Return headers without `own`, and without those that `connection` lists."""
    headers = list(headers)
    listed = {
        name.strip().lower()
        for key, value in headers
        if key == b"connection"
        for name in value.split(b",")
    }
    return [pair for pair in headers if pair[0] not in own and pair[0] not in listed]


def _previous_in(body: bytes | bytearray) -> str | None:
    try:
        name = object_of(body).get("previous_response_id")
    except ApiError:
        return None  # the route says what is wrong
    return name if isinstance(name, str) else None
