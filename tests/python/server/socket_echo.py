"""An echo on the protocol of a WebSocket, and clients for it, some of which do not behave."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
import websockets
from uvicorn.server import ServerState
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from sinkstream.server.admission import ByteBudget
from sinkstream.server.http_limits import Connections
from sinkstream.server.socket_limits import MESSAGES, BoundedSocket

KIB = 1 << 10
LIMIT = 256 * KIB  # of a message


@dataclass
class Echo:
    """A server that returns every message, unless its gate is closed."""

    port: int
    messages: ByteBudget
    gate: threading.Event
    sockets: set[Any]
    """The `BoundedSocket`s that are open."""

    def open(self) -> ClientConnection:
        # No pings of its own, and no wait for a close that does not come.
        address = f"ws://127.0.0.1:{self.port}/"
        return connect(address, ping_interval=None, close_timeout=5)

    def wait_until_held(self, is_right: Callable[[int], bool]) -> None:
        end = time.monotonic() + 30
        while not is_right(self.messages.held):
            assert time.monotonic() < end, self.messages.held
            time.sleep(0.005)


@contextmanager
def echoing(
    *,
    held: int = 4 * LIMIT,
    message_timeout_s: float = 60,
    ping_s: float = 60,
    drops: bool = False,
    buffer: int = 0,
    limit: int = LIMIT,
) -> Iterator[Echo]:
    """Run an echo in a thread.

    Args:
        held: Bytes that all sockets together may hold.
        message_timeout_s: For a message to arrive.
        ping_s: Between pings, and for each to be answered.
        drops: Whether the app says that it no longer holds a message before it answers.
        buffer: The size of the kernel's buffer for what is sent; 0 for the usual one.
        limit: The largest size of a message.
    """
    gate = threading.Event()
    gate.set()
    messages = ByteBudget(held, "the messages of all sockets")
    state = ServerState()
    failures: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            if drops:
                scope["state"][MESSAGES].drop()
            while not gate.is_set():
                await asyncio.sleep(0.005)
            kind = "text" if event.get("text") is not None else "bytes"
            await send({"type": "websocket.send", kind: event[kind]})
            event.clear()  # an echo that waits holds no message

    async def serve(ports: list[int], stop: threading.Event, ready: threading.Event) -> None:
        config = uvicorn.Config(
            app,
            ws_max_size=limit,
            ws_ping_interval=ping_s,
            ws_ping_timeout=ping_s,
            ws_per_message_deflate=False,
            log_config=None,
        )
        connections = Connections(limit=100, send_timeout_s=60)

        def protocol() -> BoundedSocket:
            return BoundedSocket(
                config=config,
                server_state=state,
                app_state={},
                connections=connections,
                messages=messages,
                message_timeout_s=message_timeout_s,
            )

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        server = await loop.create_server(protocol, "127.0.0.1", 0)
        if buffer:
            server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
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
        yield Echo(ports[0], messages, gate, state.connections)
    finally:
        gate.set()
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
    assert not failures


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


HEAD = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(first: int, payload: bytes = b"") -> bytes:
    """Return a frame of a client. Its mask is 0."""
    assert len(payload) < 126
    return bytes([first, 0x80 | len(payload)]) + bytes(4) + payload


def raw(server: Echo) -> socket.socket:
    """Open a WebSocket that answers no ping."""
    found = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    found.sendall(HEAD)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += found.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return found


def closed(found: socket.socket) -> tuple[int, str]:
    """Return the code and the reason with which the server closes a raw connection."""
    received = b""
    while part := found.recv(1 << 12):
        received += part
    at = received.rindex(b"\x88")
    length, payload = received[at + 1], received[at + 2 :]
    assert len(payload) == length
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()


def exactly(found: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes that the server sends."""
    parts = bytearray()
    while len(parts) < count:
        part = found.recv(count - len(parts))
        assert part, parts
        parts += part
    return bytes(parts)
