"""The bounds of a WebSocket: what it holds, how long a message may take, and how it is refused."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import uvicorn
import websockets
from uvicorn.server import ServerState
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from sinkstream.server.byte_budget import ByteBudget
from sinkstream.server.connections import Connections
from sinkstream.server.socket_protocol import BoundedSocket

KIB = 1 << 10
LIMIT = 256 * KIB  # of a message


@dataclass
class Echo:
    """A server that returns every message, unless its gate is closed."""

    port: int
    bodies: ByteBudget
    gate: threading.Event

    def open(self) -> ClientConnection:
        # No pings of its own, and no wait for a close that does not come.
        address = f"ws://127.0.0.1:{self.port}/"
        return connect(address, ping_interval=None, close_timeout=5)

    def wait_until_held(self, is_right: Callable[[int], bool]) -> None:
        end = time.monotonic() + 30
        while not is_right(self.bodies.held):
            assert time.monotonic() < end, self.bodies.held
            time.sleep(0.005)


@contextmanager
def echoing(
    *, held: int = 4 * LIMIT, message_timeout_s: float = 60, ping_s: float = 60
) -> Iterator[Echo]:
    """Run an echo in a thread.

    Args:
        held: Bytes that all sockets together may hold.
        message_timeout_s: For a message to arrive.
        ping_s: Between pings, and for each to be answered.
    """
    gate = threading.Event()
    gate.set()
    bodies = ByteBudget(held, "the bodies of all requests")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            while not gate.is_set():
                await asyncio.sleep(0.005)
            kind = "text" if event.get("text") is not None else "bytes"
            await send({"type": "websocket.send", kind: event[kind]})

    async def serve(ports: list[int], stop: threading.Event, ready: threading.Event) -> None:
        config = uvicorn.Config(
            app,
            ws_max_size=LIMIT,
            ws_ping_interval=ping_s,
            ws_ping_timeout=ping_s,
            ws_per_message_deflate=False,
            log_config=None,
        )
        state, connections = ServerState(), Connections(limit=100, send_timeout_s=60)

        def protocol() -> BoundedSocket:
            return BoundedSocket(
                config=config,
                server_state=state,
                app_state={},
                connections=connections,
                bodies=bodies,
                message_timeout_s=message_timeout_s,
            )

        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.01)
        server.close()

    ports: list[int] = []
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(ports, stop, ready)))
    thread.start()
    try:
        assert ready.wait(30)
        yield Echo(ports[0], bodies, gate)
    finally:
        gate.set()
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def close_of(found: ClientConnection) -> Close:
    """Return how the server closes a connection on which it sends nothing else."""
    with pytest.raises(websockets.ConnectionClosed) as closed:
        found.recv(timeout=30)
    assert closed.value.rcvd is not None
    return closed.value.rcvd


def begin(found: ClientConnection, size: int) -> None:
    """Send the first fragment of a message, of zeros."""
    # The client's own methods send a message as a whole.
    with found.protocol_mutex:
        found.protocol.send_binary(bytes(size), fin=False)
        for data in found.protocol.data_to_send():
            found.socket.sendall(data)


def raw(server: Echo) -> socket.socket:
    """Open a WebSocket that answers no ping."""
    found = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    found.sendall(
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += found.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return found


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65536, LIMIT])
def test_a_message_is_held_until_the_app_asks_for_the_next(size: int) -> None:
    with echoing() as server, server.open() as found:
        server.gate.clear()
        found.send(bytes(size))
        server.wait_until_held(lambda held: held == size)
        server.gate.set()
        assert found.recv(timeout=30) == bytes(size)
        server.wait_until_held(lambda held: held == 0)


def test_messages_that_come_together_are_all_counted() -> None:
    with echoing() as server, server.open() as found:
        server.gate.clear()
        for _ in range(5):
            found.send("a" * 1000)
        server.wait_until_held(lambda held: held >= 1000)
        begin(found, 100)
        server.gate.set()
        assert [found.recv(timeout=30) for _ in range(5)] == ["a" * 1000] * 5
        server.wait_until_held(lambda held: held == 100)
    server.wait_until_held(lambda held: held == 0)


def test_a_message_that_is_too_long_is_refused_with_a_reason() -> None:
    """Also if it is so long that the client still sends when it is refused."""
    with echoing() as server:
        for size in (LIMIT + 1, 64 << 20):
            with server.open() as found:
                with suppress(websockets.ConnectionClosed):
                    found.send(bytes(size))
                assert close_of(found).code == 1009
            server.wait_until_held(lambda held: held == 0)


def test_a_client_that_goes_on_sending_is_not_reset() -> None:
    """A reset may overtake the reason, which has arrived before."""
    with echoing() as server, raw(server) as found:
        found.sendall(b"\x82\xff" + (64 << 20).to_bytes(8, "big") + bytes(4))
        for _ in range(50):
            found.sendall(bytes(64 * KIB))
            time.sleep(0.002)
        received = found.recv(2)
        assert received[:1] == b"\x88"
        assert int.from_bytes(found.recv(2), "big") == 1009


def test_all_sockets_together_hold_no_more_than_the_budget() -> None:
    with echoing(held=2 * LIMIT) as server:
        first, second = server.open(), server.open()
        with first, server.open() as third:
            with second:
                begin(first, LIMIT)
                begin(second, LIMIT - 100)
                server.wait_until_held(lambda held: held == 2 * LIMIT - 100)
                begin(third, 101)
                close = close_of(third)
                assert (close.code, close.reason) == (
                    1013,
                    "server: all bodies and messages together are too large. Try again later.",
                )
                server.wait_until_held(lambda held: held == 2 * LIMIT - 100)
            server.wait_until_held(lambda held: held == LIMIT)
            with server.open() as fourth:
                fourth.send(bytes(LIMIT - 100))
                assert fourth.recv(timeout=30) == bytes(LIMIT - 100)
        server.wait_until_held(lambda held: held == 0)


def test_a_message_must_arrive_in_time() -> None:
    with echoing(message_timeout_s=0.3) as server, server.open() as found:
        for _ in range(3):  # no time passes between messages
            found.send("a")
            assert found.recv(timeout=30) == "a"
            time.sleep(0.2)
        begin(found, 100)
        close = close_of(found)
        assert (close.code, close.reason) == (
            1008,
            "message: must arrive within 0.3 s, but has not.",
        )
        server.wait_until_held(lambda held: held == 0)


def test_a_client_that_sends_a_long_message_slowly_need_not_answer_a_ping_meanwhile() -> None:
    with echoing(ping_s=0.2) as server, raw(server) as found:
        size = 60
        found.sendall(bytes([0x82, 0x80 | size]) + bytes(4))
        for _ in range(size):  # 1.2 s in all
            found.sendall(b"a")
            time.sleep(0.02)
        received = b""
        while not received.endswith(b"a" * size):
            part = found.recv(1 << 12)
            assert part, received
            received += part
        assert bytes([0x89, 4]) in received  # it was asked


def test_a_client_that_neither_answers_nor_sends_is_closed() -> None:
    with echoing(ping_s=0.2) as server, raw(server) as found:
        received = b""
        while part := found.recv(1 << 12):
            received += part
        assert received.endswith(b"keepalive ping timeout")
