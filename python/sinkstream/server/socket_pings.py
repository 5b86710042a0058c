"""uvicorn's protocol of a WebSocket, with bounded answers to pings, and patience for pongs."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sinkstream.server.socket_parser import SocketParser


class PingedSocket(WebSocketsSansIOProtocol):
    """A connection that answers only the last ping of a client that does not read."""

    conn: SocketParser

    def __init__(self, **arguments: Any) -> None:
        """Pass uvicorn's arguments on."""
        super().__init__(**arguments)
        self.conn = SocketParser(
            extensions=self.conn.available_extensions,
            max_size=self.config.ws_max_size,
            logger=self.logger,
        )
        self._has_heard = False
        """Whether something has arrived since the last ping, or since that was looked at."""

    def data_received(self, data: bytes) -> None:
        """Take a part of a message."""
        self._has_heard = True
        super().data_received(data)

    def handle_ping(self) -> None:
        """Answer; while the client does not read, only the last ping is answered, later."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            del self.conn.pongs[:-1]

    def resume_writing(self) -> None:
        """Resume: the client has read."""
        super().resume_writing()
        if self.conn.pongs and not (self.disconnected or self.transport.is_closing()):
            super().handle_ping()

    def note_resumed(self) -> None:
        """Note that reading was paused until now: a pong may have arrived."""
        self._has_heard = True

    def send_keepalive_ping(self) -> None:
        """Ask whether the client is there."""
        self._has_heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless a message arrives, or waits: the pong comes after that."""
        if self.close_sent or not (self._has_heard or self.read_paused):
            super().keepalive_timeout()
            return
        self._has_heard = False
        assert self.ping_timeout is not None
        self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
