"""Sends a request to a peer, and passes on its response as it arrives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

_CONNECT_S = 0.5
_PART = 1 << 16
_LIFE = {
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 20_000,
}
Headers = Sequence[tuple[bytes, bytes]]


class PeerGone(Exception):
    """The peer cannot be reached, or broke the connection."""


@dataclass(slots=True)
class _Parsed:
    """What the parser has found so far."""

    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    has_head: bool = False
    is_complete: bool = False
    status_of: Callable[[], int] = lambda: 0
    """Returns the status of the head that is being read."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.status_of() >= 200:
            self.has_head = True
        else:
            self.headers.clear()  # of a head before the last, such as 100 Continue

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head


class PeerResponse:
    """A response whose head has arrived. Used with `async with`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parsed = _Parsed()
        self._parser = httptools.HttpResponseParser(self._parsed)
        self._parsed.status_of = self._parser.get_status_code

    async def __aenter__(self) -> PeerResponse:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    @property
    def status(self) -> int:
        """Return the status."""
        return int(self._parser.get_status_code())

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers, with lower-case names."""
        return self._parsed.headers

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            PeerGone: The body breaks off.
        """
        while True:
            parts, self._parsed.parts = self._parsed.parts, []
            if parts:
                yield b"".join(parts)
            if self._parsed.is_complete:
                return
            await self._more()

    async def read_head(self) -> None:
        """Wait for the head.

        Raises:
            PeerGone: It does not arrive.
        """
        while not self._parsed.has_head:
            await self._more()

    async def _more(self) -> None:
        try:
            data = await self._reader.read(_PART)
            if not data:
                raise PeerGone("the connection was closed")
            self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise PeerGone(str(error)) from None


async def fetch(
    address: str, method: str, target: bytes, headers: Headers, body: bytes
) -> PeerResponse:
    """Send a request, and return its response once the head has arrived.

    Raises:
        PeerGone: The peer cannot be reached, or breaks the connection.
    """
    where = urlsplit(address)
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
    except OSError as error:  # a TimeoutError is one
        raise PeerGone(str(error)) from None
    response = PeerResponse(reader, writer)
    try:
        _expect_life(writer.get_extra_info("socket"))
        lines = [b"%b %b HTTP/1.1" % (method.encode(), target)]
        lines += [b"%b: %b" % pair for pair in headers]
        lines += [b"connection: close", b"content-length: %d" % len(body)]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        await response.read_head()
    except BaseException:
        writer.close()
        raise
    return response


def _expect_life(connection: socket.socket) -> None:
    """Notice within about 20 s that the peer's host is down, even while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _LIFE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
