"""Asking an owner takes a fifth of a second at most, and a dead host is not asked each time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.cluster.owners import Replica
from sinkstream.cluster.peers import peer_requests
from sinkstream.cluster.peers.peer_requests import Asking

SECRET = "a secret of sixteen or more"
RELEASED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def at(listener: socket.socket) -> Replica:
    return Replica("one", f"http://127.0.0.1:{listener.getsockname()[1]}")


@contextmanager
def owner(answer: Callable[[socket.socket], None]) -> Iterator[tuple[Replica, list[bytes]]]:
    """Give a peer that answers one request, and what it has read."""
    read: list[bytes] = []

    def talk() -> None:
        connection, _ = listener.accept()
        with connection:
            read.append(connection.recv(1 << 16))
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield at(listener), read
        thread.join(30)


@pytest.mark.parametrize(
    ("answer", "is_released"),
    [
        (RELEASED, True),
        (b"HTTP/1.1 409 Conflict\r\n\r\n", False),
        (b"200 200\n", False),
        (b"", False),
    ],
)
def test_a_conversation_is_released_if_the_owner_says_200(
    answer: bytes, is_released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_requests, "ANSWER_S", 30.0)
    with owner(lambda connection: connection.sendall(answer)) as (replica, read):
        assert Asking(SECRET)(replica, "sess 1") is is_released
    assert read[0].startswith(b"POST /internal/release?session=sess%201 HTTP/1.1\r\n")
    assert f"x-sinkstream-peer: {SECRET}\r\n".encode() in read[0]


def test_one_deadline_is_for_the_whole_answer() -> None:
    """It comes in small parts, each in time."""

    def drip(connection: socket.socket) -> None:
        try:
            for byte in RELEASED:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            pass  # the connection has been closed

    with owner(drip) as (replica, _):
        assert not Asking(SECRET)(replica, "sess_1")


def test_an_owner_that_refuses_or_says_nothing_has_not_released() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        replica = at(silent)
        assert not Asking(SECRET)(replica, "sess_1")
    assert not Asking(SECRET)(replica, "sess_1")


def test_an_address_that_does_not_connect_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing accepts, and the queue of the listener is full, so that connecting does not end."""
    ask = Asking(SECRET)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        replica = at(listener)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        assert not ask(replica, "sess_1")
        connects: list[object] = []

        def refuse(*given: object) -> socket.socket:
            connects.append(given)
            raise ConnectionRefusedError

        monkeypatch.setattr(socket, "create_connection", refuse)
        assert not ask(replica, "sess_2")
        assert connects == []
        monkeypatch.setattr(peer_requests, "SILENCE_S", 0.0)
        assert not ask(replica, "sess_3")
        assert len(connects) == 1
