"""uvicorn's HTTP protocol with limits on a request's head, and on clients that do not read.

Bad HTTP gets an error in JSON. `socket_protocol.py` is the WebSocket's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sinkstream.server.connections import Connection, Connections
from sinkstream.server.errors import ApiError

MAX_HEAD_BYTES = 1 << 16
HEAD_TIMEOUT_S = 20.0
CONNECTION = "connection"
"""The key of the `Connection` in the state of an ASGI scope."""


class _Pipelined(Exception):
    """Stops the parser."""


class Counted:
    """A part of uvicorn's protocols: a counted connection, cut off if its client does not read.

    With `asyncio.BufferedProtocol` as the last base, all connections of asyncio's own event loop
    receive into one buffer. For any other protocol, it allocates 256 KiB each time that something
    arrives, and frees all but the bytes that have arrived; the gaps that this leaves make the heap
    grow for hours.
    """

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
        self._connection = self._connections.enter(transport, self.loop)  # type: ignore[attr-defined]

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
        _free(self.transport)  # type: ignore[attr-defined]

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

    _unread_bytes = 0
    """Received since the last head or part of a body was complete: heads, chunk sizes, trailers."""
    _is_head = True
    _must_close = False
    """Whether another request arrived before the response to the last one was complete."""
    _head_timer: asyncio.TimerHandle | None = None

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
        self.scope["state"][CONNECTION] = self._connection

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
        self._refuse(
            _error(400, "invalid_http", "headers: the request must be HTTP/1.1, but is not.")
        )

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
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(head.encode() + body)
            self.transport.close()

    def _close_if_silent(self) -> None:
        self._head_timer = None
        self._refuse(_error(408, "head_timeout", "headers: must arrive in time, but have not."))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _free(transport: Any) -> None:
    """Let a closed transport of asyncio be freed at once: it refers to its own methods."""
    for name in ("_read_ready_cb", "_write_ready"):
        vars(transport).pop(name, None)


def _error(status: int, code: str, message: str) -> ApiError:
    return ApiError(status, "invalid_request_error", code, message)
