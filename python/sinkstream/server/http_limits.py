"""Limits on connections, on a request's head, and on clients that do not read.

Bad HTTP gets an error in JSON. `socket_limits.py` has those of a WebSocket.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import Any, Protocol

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sinkstream.errors import InvalidArgument
from sinkstream.server.errors import ApiError

SURPLUS = 64
"""Connections above the limit that are still answered: with 503, or with the health."""
RECEIVE_BYTES = 1 << 16
"""The most that is taken from a connection in one turn of the event loop."""
_TLS, _HTTP_2 = b"\x16\x03", b"PRI * HTTP/2.0"  # how these begin
_OWN_FILES = 128  # of a process apart from its connections: the store, the model, the event loop
MAX_HEAD_BYTES = 1 << 16
HEAD_TIMEOUT_S = 20.0
_GRACE_S = 1.0  # for the head of a new connection to arrive, before others may take its place
CONNECTION = "connection"
"""The key of the `Connection` in the state of an ASGI scope."""


class Transport(Protocol):
    """The parts of asyncio's transport that are needed."""

    def close(self) -> None:
        """Close, once what is held has been sent."""
        ...

    def abort(self) -> None:
        """Close immediately, without sending what is held."""
        ...

    def get_extra_info(self, name: str) -> Any:
        """Return a fact of the transport, such as its "socket"."""
        ...

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the kernel has not taken yet."""
        ...

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the size above which the protocol is paused."""
        ...


class Connection:
    """One connection. It is paused while the kernel's buffer for its client is full."""

    def __init__(
        self,
        all_of_them: Connections,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        is_idle: Callable[[], bool],
    ) -> None:
        self.is_idle = is_idle
        """Returns whether no request is in progress."""
        self.is_surplus = False
        """Whether it is one too many."""
        self.opened_at = time.monotonic()
        self.is_stalled = False
        """Whether it was cut off because its client did not read."""
        self._all = all_of_them
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        # Paused as soon as the kernel is full: then at most one write is held here.
        transport.set_write_buffer_limits(high=0)

    def pause(self) -> None:
        """Expect the client to take something within the time."""
        self._held = self._unread()
        self._timer = self._loop.call_later(self._all.send_timeout_s, self._check)

    def resume(self) -> None:
        """Stop waiting: the client has taken everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._unread() < self._held:
            self.pause()
            return
        self._timer = None
        self.is_stalled = True
        # Without this, the kernel would keep what it holds for the client.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _unread(self) -> int:
        """Return the bytes that the client has not received: here, and in the kernel."""
        in_kernel = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)

    def close(self) -> None:
        """Close it: it is idle."""
        self._transport.close()
        self.leave()

    def leave(self) -> None:
        """Count the connection as closed. May be called more than once."""
        self.resume()
        self.is_idle = lambda: False  # what it refers to refers to this connection
        self._all.remove(self)


class Connections:
    """The connections of a server. Belongs to one event loop."""

    def __init__(self, limit: int, send_timeout_s: float) -> None:
        """Allow `limit` connections; each client must read something every `send_timeout_s`."""
        self.limit = limit
        self.send_timeout_s = send_timeout_s
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        """What has just arrived for one of them."""
        self._open: dict[Connection, None] = {}
        """In the order in which they were opened."""

    def __len__(self) -> int:
        return len(self._open)

    def enter(
        self,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        is_idle: Callable[[], bool] = lambda: False,
    ) -> Connection:
        """Count a connection. If there are too many, the oldest one without a request is closed.

        If all have requests in progress, it is surplus; if even those are too many, it is aborted.
        """
        connection = Connection(self, transport, loop, is_idle)
        if len(self._open) >= self.limit:
            opened_before = time.monotonic() - _GRACE_S
            idle = (one for one in self._open if one.opened_at <= opened_before and one.is_idle())
            if (oldest := next(idle, None)) is not None:
                oldest.close()
        connection.is_surplus = len(self._open) >= self.limit
        if len(self._open) >= self.limit + SURPLUS:
            transport.abort()
        else:
            self._open[connection] = None
        return connection

    def remove(self, connection: Connection) -> None:
        """Count a connection as closed."""
        self._open.pop(connection, None)


def check_descriptors(connections: int) -> None:
    """Let the process open a file for each connection; refuse more than the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SURPLUS + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InvalidArgument(
            f"serve: `max_connections` must be at most {hard - SURPLUS - _OWN_FILES}, but is "
            f"{connections}: this process may open only {hard} files. Raise the limit of open "
            "files, for example with `ulimit -n`.",
            param="max_connections",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Pipelined(Exception):
    """Stops the parser."""


class Counted:
    """A part of uvicorn's protocols: a counted connection, cut off if its client does not read.

    With `asyncio.BufferedProtocol` as the last base, all connections of asyncio's own event loop
    receive into one buffer. For any other protocol, it allocates 256 KiB each time that something
    arrives, and frees all but the bytes that have arrived; the gaps that this leaves make the heap
    grow for hours.
    """

    app_state: dict[str, Any]
    _connection: Connection

    def __init__(self, *, connections: Connections, **arguments: Any) -> None:
        """Make the protocol of a connection.

        Args:
            connections: Counts it.
            **arguments: uvicorn's.
        """
        super().__init__(**arguments)
        self._connections = connections

    def connection_made(self, transport: Any) -> None:
        """Count the connection."""
        super().connection_made(transport)  # type: ignore[misc]
        loop = self.loop  # type: ignore[attr-defined]
        self._connection = self._connections.enter(transport, loop, self.is_idle)
        self.app_state = {**self.app_state, CONNECTION: self._connection}

    def is_idle(self) -> bool:
        """Return whether no request is in progress."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._connections.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived, and leave no copy of it in the buffer."""
        arrived = self._connections.receive_buffer[:nbytes]
        data = bytes(arrived)
        arrived[:] = bytes(nbytes)
        self.data_received(data)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it as closed."""
        self._connection.leave()
        super().connection_lost(exc)  # type: ignore[misc]

    def pause_writing(self) -> None:
        """Expect the client to read."""
        super().pause_writing()  # type: ignore[misc]
        self._connection.pause()

    def resume_writing(self) -> None:
        """Resume: the client has read."""
        self._connection.resume()
        super().resume_writing()  # type: ignore[misc]  # it may write, and be paused again


class BoundedHttp(Counted, HttpToolsProtocol, asyncio.BufferedProtocol):
    """uvicorn's protocol with limits."""

    _first = b""
    """The first bytes of the connection."""
    _unread_bytes = 0
    """Received since the last head or part of a body was complete: heads, chunk sizes, trailers."""
    _is_head = True
    _must_close = False
    """Whether another request arrived before the response to the last one was complete."""
    _head_timer: asyncio.TimerHandle | None = None

    def is_idle(self) -> bool:
        """Return whether the last request has been answered, and no further one has begun."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Expect the head of the first request within the time."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to a `BoundedSocket`, which counts it."""
        self._connection.leave()
        super().handle_websocket_upgrade()
        del self.parser  # it refers to this protocol's methods

    def data_received(self, data: bytes) -> None:
        """Feed the parser; `send_400_response` responds to what it refuses."""
        if self._must_close:
            return
        if self.cycle is None or self.cycle.response_complete:  # what follows is a head
            end = data.find(b"\r\n\r\n")
            if self._unread_bytes + (len(data) if end < 0 else end) > MAX_HEAD_BYTES:
                self._refuse_head()
                return
        self._unread_bytes += len(data)
        self._first = self._first or data[: len(_HTTP_2)]
        super().data_received(data)
        if self._unread_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Expect the rest of the head within the time.

        A request that does not wait for the previous response is never begun: the connection ends
        with that response. uvicorn would queue it, stop reading, and then not notice when the
        client of the running reply disconnects.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._must_close = True
            raise _Pipelined
        self._is_head = True
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_if_silent)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; leave out trailers, which have not been checked."""
        if self._is_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note that a head is complete."""
        self._unread_bytes = 0
        self._is_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unread_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Respond to what is not HTTP."""
        if self._must_close:
            return  # the response that is running is still sent
        self._refuse(_error(400, "invalid_http", _unreadable(sys.exception(), self._first)))

    def _refuse_head(self) -> None:
        rule = f"headers: must have at most {MAX_HEAD_BYTES} bytes."
        self._refuse(_error(431, "head_too_large", rule))

    def _refuse(self, error: ApiError) -> None:
        body = error.as_json()
        head = (
            f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        if not self.transport.is_closing():
            # While the app waits for the rest of a body, it has not responded.
            cycle = self.cycle
            if cycle is None or cycle.response_complete or not cycle.response_started:
                self.transport.write(head.encode() + body)
            self.transport.close()

    def _close_if_silent(self) -> None:
        self._head_timer = None
        self._refuse(_error(408, "head_timeout", "headers: must arrive in time, but have not."))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _unreadable(error: BaseException | None, first: bytes) -> str:
    """Return why a request cannot be read: `first` are the first bytes of its connection."""
    if first.startswith(_TLS):
        return "headers: the request must be without TLS, but is not. Use http://, not https://."
    if first.startswith(_HTTP_2):
        return "headers: the request must be HTTP/1.1, but is HTTP/2."
    reason = str(error) if isinstance(error, HttpParserError) else ""
    return f"headers: the request must be valid HTTP/1.1, but is not: {reason or 'unknown'}."


def _error(status: int, code: str, message: str) -> ApiError:
    return ApiError(status, "invalid_request_error", code, message)
