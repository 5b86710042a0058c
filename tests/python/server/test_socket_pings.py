"""Pings and pongs of a WebSocket whose client floods, does not read, or has to wait."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.socket_echo import KIB, Echo, echoing, exactly, frame, raw


def deaf(server: Echo) -> socket.socket:
    """Open a connection whose client has hardly room for what it does not read."""
    found = raw(server)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    return found


def test_pings_of_a_client_that_does_not_read_take_little_memory() -> None:
    """They are read only as fast as it reads what they are answered with."""
    ping = frame(0x89, bytes(125))
    pong = b"\x8a\x7d" + bytes(125)
    with echoing(buffer=16 * KIB, ping_s=3600) as server, deaf(server) as found:
        found.setblocking(False)
        (protocol,) = server.sockets
        sent = most = 0
        for _ in range(400):
            with suppress(BlockingIOError):
                sent += found.send((100 * ping)[sent % len(ping) :])
            most = max(most, protocol.transport.get_write_buffer_size())
            time.sleep(0.002)
        assert most < 200 * KIB
        found.setblocking(True)
        found.settimeout(30)
        rest = -sent % len(ping)
        asked = (sent + rest) // len(ping)
        assert exactly(found, len(pong)) == pong  # the server reads again
        reader = threading.Thread(target=found.sendall, args=(ping[len(ping) - rest :],))
        reader.start()
        assert exactly(found, (asked - 1) * len(pong)) == (asked - 1) * pong
        reader.join(30)
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
