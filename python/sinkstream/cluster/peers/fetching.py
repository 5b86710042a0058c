"""Sends a request to a peer, and gives its response as it arrives."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

_CONNECT_S = 0.5
# A peer whose host is down is noticed within about 20 s, even while nothing is sent.
_LIFE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
]
Headers = Sequence[tuple[bytes, bytes]]


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
        self, address: str, method: str, target: bytes, headers: Headers, body: bytes
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
