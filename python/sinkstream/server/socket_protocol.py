"""uvicorn's protocol of a WebSocket with limits on messages, their time, and idle clients."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from sinkstream.server.byte_budget import ByteBudget
from sinkstream.server.errors import ApiError
from sinkstream.server.protocol import CONNECTION, Counted


class BoundedSocket(Counted, WebSocketsSansIOProtocol):
    """A counted connection, cut off if its client does not read.

    What it holds of messages counts as the bodies of requests do: from the first byte until the app
    asks for the next message. A message has as much time to arrive as a body.
    """

    def __init__(self, *, bodies: ByteBudget, message_timeout_s: float, **arguments: Any) -> None:
        """Make the protocol of a connection.

        Args:
            bodies: Counts what is held.
            message_timeout_s: For a message to arrive, from its first byte on.
            **arguments: Of `Counted`, and uvicorn's.
        """
        super().__init__(**arguments)
        self._bodies = bodies
        self._message_timeout_s = message_timeout_s
        self._held = 0
        """Bytes that are counted."""
        self._queued: deque[int] = deque()
        """Bytes of each message that the app has not received."""
        self._queued_bytes = 0
        """Their sum: there may be very many."""
        self._received = 0
        """Bytes of the message that the app has received last, and may still hold."""
        self._has_failed = False
        """Whether what still arrives is thrown away."""
        self._has_heard = False
        """Whether something has arrived since the last ping, or since that was looked at."""
        self._message_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Hold nothing."""
        self._has_failed = True
        self._stop_timer()
        self._bodies.give_back(self._held)
        self._held = 0
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a message."""
        if self._has_failed:
            return
        self._has_heard = True
        super().data_received(data)
        self._count()
        self._watch()

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message."""
        size = sum(map(len, self.frames))
        is_dropped = self.close_sent
        super().send_receive_event_to_app()
        if not (is_dropped or self._has_failed):
            self._queued.append(size)
            self._queued_bytes += size

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message; the app no longer holds the last one."""
        self._received = 0
        self._count()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._received = self._queued.popleft()
            self._queued_bytes -= self._received
        self._watch()
        return message

    async def run_asgi(self) -> None:
        """Run the app, which can look at the connection."""
        self.scope["state"][CONNECTION] = self._connection
        await super().run_asgi()

    def handle_parser_exception(self) -> None:
        """Tell the client why its connection ends, and read on for a while without looking.

        If it were closed at once, the system would answer what still arrives with a reset, and the
        client might lose the reason.
        """
        close = self.conn.close_sent
        code = CloseCode.ABNORMAL_CLOSURE if close is None else close.code
        reason = "" if close is None else close.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._has_failed = self.close_sent = self.disconnected = True
        self.writable.set()  # who waits to send is told that nothing more can be sent
        self.conn.reader.discard()
        self.frames = []
        self._stop_timer()
        if self.transport.is_closing():
            return
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    def send_keepalive_ping(self) -> None:
        """Ask whether the client is there."""
        self._has_heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless its client sends a message: its pong comes after that."""
        if not self._has_heard:
            super().keepalive_timeout()
            return
        self._has_heard = False
        assert self.ping_timeout is not None
        self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    def _count(self) -> None:
        """Count what is held now; refuse the message that is arriving if that is too much."""
        if self._has_failed:
            return
        arriving = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        held = arriving + self._queued_bytes + self._received
        if held <= self._held:
            self._bodies.give_back(self._held - held)
        else:
            try:
                self._bodies.take(held - self._held)
            except ApiError:
                reason = "server: all bodies and messages together are too large. Try again later."
                self._fail(CloseCode.TRY_AGAIN_LATER, reason)
                return
        self._held = held

    def _watch(self) -> None:
        """Expect the rest of a message within the time, if one has begun to arrive."""
        is_arriving = bool(self.conn.reader.buffer) or self.conn.current_size is not None
        if self._has_failed or self.close_sent or self.read_paused or not is_arriving:
            self._stop_timer()
        elif self._message_timer is None:
            self._message_timer = self.loop.call_later(self._message_timeout_s, self._end_late)

    def _end_late(self) -> None:
        self._message_timer = None
        reason = f"message: must arrive within {self._message_timeout_s:g} s, but has not."
        self._fail(CloseCode.POLICY_VIOLATION, reason)

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def _stop_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None
