"""At most a number of connections, HTTP and WebSocket alike; health still answers beyond it."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sinkstream.errors import InvalidArgument
from sinkstream.server import http_limits
from sinkstream.server.http_limits import SURPLUS, Connections, check_descriptors
from tests.python.server.http.running_server import CHAT, HELLO, Running, read_all, running

LIMIT = 4
CHAT_BODY = {"messages": HELLO, "max_tokens": 1, "seed": 1}


@pytest.fixture(scope="module")
def small(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server for few connections."""
    with running(tiny_folder("llama"), max_connections=LIMIT) as found:
        yield found


UPLOAD = (
    f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Content-Length: 9\r\n"
)


def connect(server: Running, stack: ExitStack, count: int) -> None:
    """Begin requests whose bodies do not arrive."""
    for _ in range(count):
        stack.enter_context(server.open(UPLOAD))


def holds(server: Running, count: int) -> bool:
    """Return whether this number of connections is open, without the one that asks."""
    return server.metric("sinkstream_open_connections") == count + 1


def test_further_connections_are_refused_but_health_answers(small: Running) -> None:
    with ExitStack() as stack:
        connect(small, stack, LIMIT - 1)
        small.wait_until(lambda: holds(small, LIMIT - 1), "almost full")
        assert small.post(CHAT, CHAT_BODY).status == 200
        connect(small, stack, 1)
        small.wait_until(lambda: small.post(CHAT, CHAT_BODY).status == 503, "full")
        answer = small.post(CHAT, CHAT_BODY)
        assert answer.error["code"] == "connections"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-should-retry"] == "true"
        for path in ("/health", "/v1/health"):
            answer = small.ask("GET", path)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
    small.wait_until(lambda: small.post(CHAT, CHAT_BODY).status == 200, "room again")
    small.wait_until(lambda: holds(small, 0), "all are counted as closed")


def test_idle_connections_give_way(small: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they have sent nothing, part of a head, or a request that has been answered."""
    small.wait_until(lambda: holds(small, 0), "empty")
    with ExitStack() as stack:
        connect(small, stack, 1)
        silent, partial = (stack.enter_context(open_raw(small)) for _ in range(2))
        partial.sendall(b"GET /health HTTP/1.1\r\n")
        answered = stack.enter_context(small.open("GET /health HTTP/1.1\r\nHost: localhost\r\n"))
        seen = b""
        while not seen.endswith(b'{"status":"ok"}'):
            seen += answered.recv(4096)
        for oldest in (silent, partial, answered):
            monkeypatch.setattr(http_limits, "_GRACE_S", 0.0)
            begun = stack.enter_context(small.open(UPLOAD))
            assert oldest.recv(1) == b""
            monkeypatch.setattr(http_limits, "_GRACE_S", 60.0)
        small.wait_until(lambda: small.post(CHAT, CHAT_BODY).status == 503, "all are busy")
        begun.sendall(b"{}       ")
        assert b" 400 " in begun.recv(4096)
        assert small.post(CHAT, CHAT_BODY).status == 503  # it may send another request soon
        monkeypatch.setattr(http_limits, "_GRACE_S", 0.0)
        assert small.post(CHAT, CHAT_BODY).status == 200  # in its place
    small.wait_until(lambda: holds(small, 0), "all are counted as closed")


def open_raw(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


class FakeTransport:
    """What a connection uses of a transport before anything is sent."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0


def test_a_surplus_is_bounded_too() -> None:
    connections, loop = Connections(LIMIT, 1.0), asyncio.new_event_loop()
    transports = [FakeTransport() for _ in range(LIMIT + SURPLUS + 3)]
    entered = [connections.enter(one, loop) for one in transports]
    assert [one.is_surplus for one in entered] == [False] * LIMIT + [True] * (SURPLUS + 3)
    assert [one.is_aborted for one in transports] == [False] * (LIMIT + SURPLUS) + [True] * 3
    assert len(connections) == LIMIT + SURPLUS
    loop.close()


UPGRADE = (
    "GET /v1/socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def test_a_websocket_counts_once(small: Running) -> None:
    small.wait_until(lambda: holds(small, 0), "empty")
    for _ in range(3):
        with small.open(UPGRADE) as connection:  # there is no such socket: refused, and closed
            assert connection.recv(4096).startswith(b"HTTP/1.1 4")
    small.wait_until(lambda: holds(small, 0), "empty")
    with ExitStack() as stack:
        connect(small, stack, LIMIT)
        small.wait_until(lambda: b" 503 " in upgraded(small), "full")


def upgraded(server: Running) -> bytes:
    with server.open(UPGRADE) as connection:
        return read_all(connection)


def test_the_limit_of_open_files_is_raised_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, given = (1000, 5000), []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: given.append(both))
    check_descriptors(500)
    assert given == []
    check_descriptors(4000)
    ((soft, hard),) = given
    assert 4000 + SURPLUS < soft <= hard == 5000
    with pytest.raises(InvalidArgument, match=r"`max_connections` must be at most \d+, ") as error:
        check_descriptors(5000)
    assert error.value.param == "max_connections"
    most = int(str(error.value).split("at most ")[1].split(",")[0])
    check_descriptors(most)
    with pytest.raises(InvalidArgument):
        check_descriptors(most + 1)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    check_descriptors(5000)
