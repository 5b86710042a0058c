"""Limits of a WebSocket that uvicorn and `websockets` have no setting for.

Theirs are the largest size of a message, and how often a client is asked whether it is there. These
are the memory that the messages of all sockets take, the time for a message to arrive, and the
patience with clients that do not read, or whose messages wait.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from typing import Any

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Close, CloseCode, Frame, Opcode

from sinkstream.server.admission import ByteBudget
from sinkstream.server.http_limits import Counted

MESSAGE_BYTES = 256
"""What a complete message takes in addition to its data, rounded up."""
MESSAGES = "messages"
"""The key of the `HeldMessages` in the state of an ASGI scope."""


class HeldMessages:
    """What one socket holds of messages, as a part of what all sockets may hold.

    A message counts from its first byte until the app drops it, or asks for the next.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._tenant = ""
        self._counted = 0  # in the budget
        self._arriving = 0
        self._queued: deque[int] = deque()
        """Bytes of each message that the app has not received."""
        self._queued_bytes = 0
        """Their sum: there may be very many."""
        self._received = 0
        """Bytes of the message that the app has received last, and may still hold."""

    def belong_to(self, tenant: str) -> None:
        """Note whose messages these are, known once the head is checked."""
        self._budget.give_back(self._counted, self._tenant)
        self._tenant = tenant
        self._budget.count(self._counted, tenant)

    def arrive(self, count: int) -> bool:
        """Note how many bytes of an incomplete message are held; return whether all have room."""
        self._arriving = count
        return self._count()

    def queue(self, size: int) -> None:
        """Note that a message of `size` bytes is complete; it is counted when more arrives."""
        self._queued.append(size + MESSAGE_BYTES)
        self._queued_bytes += size + MESSAGE_BYTES

    def receive(self) -> None:
        """Note that the app receives the next message."""
        self._received = self._queued.popleft()
        self._queued_bytes -= self._received

    def drop(self) -> int:
        """Note that the app does not hold its message any longer; return its size."""
        size, self._received = self._received, 0
        self._count()
        return max(0, size - MESSAGE_BYTES)

    def drop_all(self) -> None:
        """Note that the app has ended."""
        self._queued.clear()
        self._arriving = self._queued_bytes = self._received = 0
        self._count()

    def _count(self) -> bool:
        held = self._arriving + self._queued_bytes + self._received
        change, self._counted = held - self._counted, held
        return self._budget.count(change, self._tenant)


class BoundedSocket(Counted, WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """A counted connection. A message has as much time to arrive as a body."""

    def __init__(self, *, messages: ByteBudget, message_timeout_s: float, **arguments: Any) -> None:
        """Make the protocol of a connection.

        Args:
            messages: Counts what all sockets hold.
            message_timeout_s: For a message to arrive, from its first byte on.
            **arguments: Of `Counted`, and uvicorn's.
        """
        super().__init__(**arguments)
        self._held = HeldMessages(messages)
        self.app_state = {**self.app_state, MESSAGES: self._held}
        self._message_timeout_s = message_timeout_s
        self._message_timer: asyncio.TimerHandle | None = None
        self._has_failed = False
        """Whether what still arrives is thrown away."""
        self._has_heard = False
        """Whether something has arrived since the last ping, or since that was looked at."""
        self._late_pong = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is held of the connection."""
        self._end()
        super().connection_lost(exc)
        self.conn.parser.close()  # a generator that refers to `conn`, which refers to it

    async def run_asgi(self) -> None:
        """Run the app; once it has ended, it holds no message."""
        try:
            await super().run_asgi()
        finally:
            self._held.drop_all()

    def data_received(self, data: bytes) -> None:
        """Take a part of a message."""
        if not self._has_failed:
            self._has_heard = True
            super().data_received(data)
            self._watch()

    def handle_text(self, event: Frame) -> None:
        """Begin a text."""
        super().handle_text(event)
        self._own(event)

    def handle_bytes(self, event: Frame) -> None:
        """Begin a message that is not a text."""
        super().handle_bytes(event)
        self._own(event)

    def _own(self, event: Frame) -> None:
        event.data = b""  # the parser holds its last frame until the next one has arrived
        if not event.fin:
            self.frames = [bytearray(self.frames[0])]  # type: ignore[list-item]

    def handle_cont(self, event: Frame) -> None:
        """Add to a message: as a list, many small parts would take far more than their bytes."""
        self.frames[0] += event.data
        event.data = b""
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message, and read no further before the app has received it."""
        (data,), self.frames = self.frames, []
        if self.close_sent:
            return
        try:
            if self.curr_msg_data_type == "text":
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            else:
                self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "message: must be UTF-8, but is not.")
            return
        self._held.queue(len(data))
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message; the app no longer holds the last one."""
        self._held.drop()
        event = await super().receive()
        if event["type"] == "websocket.receive":
            self._held.receive()
            self._has_heard = True  # its pong is read just after a message that has waited
        self._watch()
        return event

    def handle_ping(self) -> None:
        """Answer; while the client does not read, only the last ping is answered, later."""
        answers = self.conn.data_to_send()
        if self.disconnected or not self.handshake_complete:
            return  # what is sent first is the head
        if self.writable.is_set() or self.conn.close_expected():
            self.transport.write(b"".join(answers))
        elif answers:
            self._late_pong = answers[-1]

    def resume_writing(self) -> None:
        """Resume: the client has read."""
        super().resume_writing()
        pong, self._late_pong = self._late_pong, b""
        if pong and not (self.disconnected or self.transport.is_closing()):
            self.transport.write(pong)

    def send_keepalive_ping(self) -> None:
        """Ask whether the client is there."""
        self._has_heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless something arrives, or waits: the pong comes after that."""
        is_there, self._has_heard = self._has_heard or self.read_paused, False
        if self.close_sent or not is_there:
            super().keepalive_timeout()
        else:
            assert self.ping_timeout is not None
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    def _watch(self) -> None:
        """Count what is held now; refuse what is too much, and expect the rest of a message."""
        if self._has_failed:
            return
        arriving = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        if not self._held.arrive(arriving):
            reason = "server: all messages together are too large. Try again later."
            self._fail(CloseCode.TRY_AGAIN_LATER, reason)
        elif self.close_sent or self.read_paused or not (arriving or self.frames):
            self._stop_timer()
        elif self._message_timer is None:
            self._message_timer = self.loop.call_later(self._message_timeout_s, self._end_late)

    def _end_late(self) -> None:
        self._message_timer = None
        reason = f"message: must arrive within {self._message_timeout_s:g} s, but has not."
        self._fail(CloseCode.POLICY_VIOLATION, reason)

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close the connection with a reason, whatever the parser would answer."""
        self.conn.fail(code, reason)
        self.conn.data_to_send()  # such as the answer to a close that has come meanwhile
        close = Frame(Opcode.CLOSE, Close(code, reason).serialize()).serialize(mask=False)
        self._close(close if self.handshake_complete else b"", code, reason)

    def handle_parser_exception(self) -> None:
        """Close the connection for the parser's reason."""
        close = self.conn.close_sent
        code = CloseCode.ABNORMAL_CLOSURE if close is None else close.code
        reason = "" if close is None else close.reason
        self._close(b"".join(self.conn.data_to_send()), code, reason)

    def _close(self, last: bytes, code: int, reason: str) -> None:
        """Send the last bytes, and read on for a while without looking.

        If the connection were closed at once, the system would answer what still arrives with a
        reset, and the client might lose the reason.
        """
        self._has_failed = True
        self._drop()  # before the client can read the last bytes
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if not self.transport.is_closing():
            self.transport.write(last)
            self.transport.write_eof()
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        self._end()

    def handle_close(self, event: Frame) -> None:
        """Close the connection."""
        super().handle_close(event)
        self._end()

    def _end(self) -> None:
        """Send nothing more, not even after a write that has paused the app."""
        self.close_sent = self.disconnected = self.handshake_complete = True
        self.writable.set()
        self._drop()

    def _drop(self) -> None:
        """Hold nothing of what has arrived, except what the app has received, or still will."""
        self._stop_timer()
        self.conn.events_received()  # those that came with what has failed
        if (error := self.conn.parser_exc) is not None:
            traceback.clear_frames(error.__traceback__)  # they hold the last frame
        self.frames = []
        self._held.arrive(0)

    def _stop_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None
