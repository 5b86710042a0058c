"""Pings and pongs of a WebSocket whose client floods, does not read, or has to wait."""

from __future__ import annotations

import socket
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.socket_echo import KIB, Echo, echoing, exactly, frame, raw


def deaf(server: Echo) -> socket.socket:
    """Open a connection whose client has hardly room for what it does not read."""
    found = raw(server)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    return found


def test_only_the_last_ping_is_answered_while_the_client_does_not_read() -> None:
    count, each = 16, 1000
    with echoing(buffer=16 * KIB) as server, deaf(server) as found:
        for part in range(count):
            pings = [frame(0x89, f"{part * each + i:0125}".encode()) for i in range(each)]
            found.sendall(b"".join(pings))
            time.sleep(0.02)
        (protocol,) = server.sockets
        assert protocol.transport.get_write_buffer_size() < 1000 * KIB
        last = b"\x8a\x7d" + f"{count * each - 1:0125}".encode()
        received = exactly(found, len(last))
        while received[-len(last) :] != last:
            received += exactly(found, len(last))
        assert len(received) < count * each * len(last) / 2
        found.sendall(frame(0x82, b"a"))
        assert exactly(found, 3) == b"\x82\1a"


def test_a_client_whose_messages_wait_is_not_closed_as_dead() -> None:
    """Its pongs have not been read: the app has not asked for the messages before them."""
    with echoing(ping_s=0.1) as server, server.open() as found:
        server.gate.clear()
        found.send("a")
        found.send("b")
        time.sleep(1)
        server.gate.set()
        assert [found.recv(timeout=30) for _ in range(2)] == ["a", "b"]
        time.sleep(0.5)
        found.send("c")
        assert found.recv(timeout=30) == "c"
