"""A WebSocket ends whatever its client does, and then holds nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import tracemalloc
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import uvicorn
from uvicorn.server import ServerState
from websockets.frames import CloseCode

from sinkstream.server.admission import ByteBudget
from sinkstream.server.http_limits import Connections
from sinkstream.server.socket_limits import BoundedSocket
from tests.python.server.socket_echo import HEAD, frame

MIB = 1 << 20


class FullTransport(asyncio.Transport):
    """A transport whose client takes nothing."""

    def __init__(self, protocol: BoundedSocket) -> None:
        super().__init__()
        self.protocol = protocol
        self.is_closed = self.is_ended = False
        self.ours, self.theirs = socket.socketpair()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.ours if name == "socket" else default

    def write(self, data: Any) -> None:
        assert not self.is_ended
        if data:
            self.protocol.pause_writing()

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def _never(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await asyncio.Event().wait()


async def begun(app: Any, data: bytes) -> BoundedSocket:
    """Return the protocol of a client that has sent `data`, and takes nothing."""
    protocol = BoundedSocket(
        config=uvicorn.Config(app, log_config=None, ws_per_message_deflate=False),
        server_state=ServerState(),
        app_state={},
        connections=Connections(limit=100, send_timeout_s=60),
        messages=ByteBudget(1 << 20, "the messages of all sockets"),
        message_timeout_s=60,
    )
    protocol.connection_made(FullTransport(protocol))
    protocol.data_received(data)
    for _ in range(5):
        await asyncio.sleep(0)
    return protocol


async def connected() -> BoundedSocket:
    """Return the protocol of an open WebSocket."""
    protocol = await begun(_never, HEAD)
    assert protocol.handshake_complete
    return protocol


def test_nothing_waits_to_send_after_a_failure() -> None:
    async def run() -> None:
        protocol = await connected()
        assert not protocol.writable.is_set()
        protocol._fail(CloseCode.POLICY_VIOLATION, "no")
        assert protocol.writable.is_set()

    asyncio.run(run())


@pytest.mark.parametrize("last", [frame(0x88), frame(0x83)])
def test_a_server_can_end_while_a_client_does_not_read_its_close(last: bytes) -> None:
    async def run() -> None:
        protocol = await connected()
        protocol.data_received(last)
        protocol.shutdown()
        assert protocol.transport.is_closing()

    asyncio.run(run())


@pytest.mark.parametrize("early", [frame(0x83), frame(0x88)])
def test_an_app_may_fail_after_a_client_that_has_left_before_it_was_accepted(early: bytes) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise ValueError("no")

    async def ignore(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def run() -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, one: failures.append(one))
        for app in (fail, ignore):
            protocol = await begun(app, HEAD + early)
            assert protocol.disconnected
            assert not protocol.tasks
            assert not failures

    asyncio.run(run())


def test_a_message_that_waited_shows_that_the_client_is_there() -> None:
    """Its pong is read just after that."""

    async def run() -> None:
        protocol = await connected()
        protocol.data_received(frame(0x82))
        protocol.send_keepalive_ping()
        assert (await protocol.receive())["type"] == "websocket.receive"
        assert not protocol.read_paused
        protocol.keepalive_timeout()
        assert not protocol.transport.is_closing()
        protocol.keepalive_timeout()
        assert protocol.transport.is_closing()

    asyncio.run(run())


@pytest.mark.parametrize("first", [0x81, 0x82])
def test_a_message_before_a_failure_is_not_kept(first: int) -> None:
    """It is complete, but the app is never told of it."""

    async def run() -> None:
        protocol = await connected()
        size = 8 * MIB
        long = bytes([first, 0xFF]) + size.to_bytes(8, "big") + bytes(4) + bytes(size)
        tracemalloc.start()
        protocol.data_received(long + frame(0x83))  # there is no such frame
        assert protocol.conn.close_sent is not None
        assert protocol.conn.close_sent.code == CloseCode.PROTOCOL_ERROR
        del long
        assert tracemalloc.get_traced_memory()[0] < MIB
        tracemalloc.stop()

    asyncio.run(run())


def test_a_client_that_takes_no_pong_is_cut_off_like_any_other() -> None:
    """Sent when the client has taken everything, the pong fills the system's buffer again."""

    async def run() -> None:
        protocol = await connected()
        protocol.data_received(frame(0x89, b"a"))
        assert protocol._connection._timer is not None
        protocol.resume_writing()
        assert not protocol.writable.is_set()
        assert protocol._connection._timer is not None
        protocol.connection_lost(None)

    asyncio.run(run())


def test_a_failed_socket_keeps_no_frame() -> None:
    async def run() -> None:
        protocol = await connected()
        size = 8 * MIB
        long = bytes([0x82, 0xFF]) + size.to_bytes(8, "big") + bytes(4) + bytes(size)
        tracemalloc.start()
        protocol.data_received(frame(0x02))
        protocol.data_received(long)  # not a continuation
        assert protocol.conn.close_sent is not None
        assert protocol.conn.close_sent.code == CloseCode.PROTOCOL_ERROR
        assert tracemalloc.get_traced_memory()[0] < MIB
        tracemalloc.stop()

    asyncio.run(run())
