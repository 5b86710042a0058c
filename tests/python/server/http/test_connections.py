"""What a connection may send: one request at a time, and heads and trailers of a bounded size."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.python.server.http.running_server import COMPLETIONS, ENDLESS, Running, read_all

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Transfer-Encoding: chunked\r\n"
)


def is_idle(server: Running) -> bool:
    stats = server.model.stats()
    return bool(stats["waiting"] == stats["running"] == 0)


@pytest.mark.parametrize("further", [GET, b"GET /health HTTP/1.1\r\n", b"\0"])
def test_who_leaves_is_noticed_although_a_further_request_was_sent(
    server: Running, further: bytes
) -> None:
    with server.begin(COMPLETIONS, ENDLESS) as connection:
        while b"data: " not in connection.recv(1 << 16):
            pass
        connection.sendall(further)
        time.sleep(0.1)  # it arrives before the end
    server.wait_until(lambda: is_idle(server), "idle")


def test_a_request_that_does_not_wait_is_not_answered(server: Running) -> None:
    data = json.dumps({"prompt": "the", "max_tokens": 300, "ignore_eos": True, "seed": 1}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.open(f"{head}Content-Length: {len(data)}\r\n", data + GET) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 300


def test_a_request_that_waits_is_answered_on_the_same_connection(server: Running) -> None:
    with server.open(GET[:-2].decode()) as connection:
        for _ in range(3):
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            connection.sendall(GET)


def send_slowly(connection: socket.socket, endless: str) -> None:
    for i in range(100):
        connection.sendall((endless.format(i) * 10_000).encode())
        time.sleep(0.01)


@pytest.mark.parametrize("endless", ["x-{}: y\r\n", "y"])
def test_what_follows_a_body_is_bounded(locked: Running, endless: str) -> None:
    """Even of a client without a key, whose body is not read."""
    with locked.open(CHUNKED, b"1\r\nx\r\n0\r\nx-trailer: ") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            send_slowly(connection, endless)


def test_a_long_body_in_small_chunks_is_no_long_head(server: Running) -> None:
    text = "a" * 100_000
    body = b'{"max_tokens":1,"prompt":[' + b",".join(b"5" for _ in text) + b"]}"
    chunks = b"".join(b"40\r\n%b\r\n" % body[i : i + 64].ljust(64) for i in range(0, len(body), 64))
    status, answer = server.raw(CHUNKED, chunks + b"0\r\nx-trailer: 1\r\n\r\n")
    assert status == 200, answer


def test_a_trailer_is_no_header(locked: Running) -> None:
    body = b"2\r\n{}\r\n0\r\nx-api-key: right\r\n\r\n"
    assert locked.raw(CHUNKED, body)[0] == 401
