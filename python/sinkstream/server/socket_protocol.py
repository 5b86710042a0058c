"""uvicorn's protocol of a WebSocket with limits on messages, their time, and idle clients."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGIReceiveEvent
from websockets.frames import CloseCode, Frame

from sinkstream.server.byte_budget import ByteBudget
from sinkstream.server.errors import ApiError
from sinkstream.server.held_messages import HeldMessages
from sinkstream.server.protocol import CONNECTION, Counted
from sinkstream.server.socket_pings import PingedSocket

DROP_MESSAGE = "drop_message"
"""The key of `BoundedSocket.drop_message` in the state of an ASGI scope."""


class BoundedSocket(Counted, PingedSocket, asyncio.BufferedProtocol):
    """A counted connection, cut off if its client does not read.

    What it holds of messages counts from the first byte until the app drops the message, or asks
    for the next. A message has as much time to arrive as a body.
    """

    def __init__(self, *, messages: ByteBudget, message_timeout_s: float, **arguments: Any) -> None:
        """Make the protocol of a connection.

        Args:
            messages: Counts what all sockets hold.
            message_timeout_s: For a message to arrive, from its first byte on.
            **arguments: Of `Counted`, and uvicorn's.
        """
        super().__init__(**arguments)
        self._held = HeldMessages(messages)
        self._message_timeout_s = message_timeout_s
        self._has_failed = False
        """Whether what still arrives is thrown away."""
        self._message_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Hold only what the app has received, or still will."""
        self._throw_away()
        super().connection_lost(exc)
        self.conn.parser.close()  # the generator refers to `conn`, which refers to it

    def data_received(self, data: bytes) -> None:
        """Take a part of a message."""
        if self._has_failed:
            return
        super().data_received(data)
        self._count()
        self._watch()

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message."""
        size, is_dropped = sum(map(len, self.frames)), self.close_sent
        is_text = self.curr_msg_data_type == "text"
        self.curr_msg_data_type = "bytes"  # a text may take four times as much
        super().send_receive_event_to_app()
        if not is_dropped:
            self._held.queue(size, is_text=is_text)

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message; the app no longer holds the last one."""
        self.drop_message()
        was_paused = self.read_paused
        event = await super().receive()
        if was_paused and not self.read_paused:
            self.note_resumed()
        if event["type"] == "websocket.receive" and self._held.receive():
            data = event["bytes"]
            assert data is not None
            event = {"type": "websocket.receive", "text": data.decode()}
        self._watch()
        return event

    def drop_message(self) -> int:
        """Note that the app no longer holds the last message; return its bytes."""
        size = self._held.drop()
        self._count()
        return size

    async def run_asgi(self) -> None:
        """Run the app, which can look at the connection."""
        state = self.scope["state"]
        state[CONNECTION], state[DROP_MESSAGE] = self._connection, self.drop_message
        try:
            await super().run_asgi()
        finally:
            self._forget_queued()
            self.drop_message()
            del state[DROP_MESSAGE]  # the scope would hold this protocol, which holds the scope

    def send_500_response(self) -> None:
        """Tell the client that the app has failed, if anything can still be sent."""
        if not self.conn.eof_sent:
            super().send_500_response()

    def shutdown(self) -> None:
        """Say that the server ends, if anything can still be sent."""
        if self.conn.eof_sent:
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def handle_close(self, event: Frame) -> None:
        """Close the connection."""
        super().handle_close(event)
        if not self.handshake_complete:
            self.disconnected = True  # the app can no longer accept it

    def handle_parser_exception(self) -> None:
        """Tell the client why its connection ends, and read on for a while without looking.

        If it were closed at once, the system would answer what still arrives with a reset, and the
        client might lose the reason.
        """
        close = self.conn.close_sent
        code = CloseCode.ABNORMAL_CLOSURE if close is None else close.code
        reason = "" if close is None else close.reason
        self.close_sent = self.disconnected = True
        self._forget_queued()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._throw_away()
        if not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.write_eof()
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        # The app is told that nothing more can be sent, also if that write has paused it.
        self.writable.set()

    def _forget_queued(self) -> None:
        """Forget the messages that the app has not received."""
        events = [self.queue.get_nowait() for _ in range(self.queue.qsize())]
        for event in events:
            if event["type"] != "websocket.receive":
                self.queue.put_nowait(event)
        self._held.forget_queued()

    def _throw_away(self) -> None:
        """Drop what has arrived of a message, and what still arrives."""
        self._has_failed = True
        self._stop_timer()
        self.conn.reader.discard()
        self.conn.events_received()  # those that came with what has failed
        self.conn.parser_exc = None  # its traceback holds the last frame
        self.conn.current_size = None
        self.frames = []
        self._count()

    def _count(self) -> None:
        """Count what is held now; refuse the message that is arriving if that is too much."""
        arriving = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        try:
            self._held.count(arriving)
        except ApiError:
            reason = "server: all messages together are too large. Try again later."
            self._fail(CloseCode.TRY_AGAIN_LATER, reason)

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
