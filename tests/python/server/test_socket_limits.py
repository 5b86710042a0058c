"""The bounds of a WebSocket: what it holds, how long a message may take, and how it is refused."""

from __future__ import annotations

import socket
import time
import tracemalloc
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import websockets

from sinkstream.server.socket_limits import MESSAGE_BYTES
from tests.python.server.socket_echo import (
    HEAD,
    KIB,
    LIMIT,
    begin,
    close_of,
    closed,
    echoing,
    exactly,
    frame,
    raw,
)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65536, LIMIT])
def test_a_message_is_held_until_the_app_asks_for_the_next(size: int) -> None:
    with echoing() as server, server.open() as found:
        server.gate.clear()
        found.send(bytes(size))
        server.wait_until_held(lambda held: held == size + MESSAGE_BYTES)
        server.gate.set()
        assert found.recv(timeout=30) == bytes(size)
        server.wait_until_held(lambda held: held == 0)


def test_a_message_is_held_until_the_app_drops_it() -> None:
    """Such as before it sends an answer, which the client may not read."""
    with echoing(drops=True) as server, server.open() as found:
        server.gate.clear()
        found.send("a" * 1000)
        begin(found, 100)
        server.wait_until_held(lambda held: held == 100)
        server.gate.set()
        assert found.recv(timeout=30) == "a" * 1000


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


@pytest.mark.parametrize("first", [0x81, 0x82])
def test_messages_take_memory_even_if_they_are_empty(first: int) -> None:
    with echoing() as server, raw(server) as found:
        server.gate.clear()
        found.sendall(100 * frame(first))
        server.wait_until_held(lambda held: held == 100 * MESSAGE_BYTES)
        server.gate.set()
        assert exactly(found, 200) == 100 * bytes([first, 0])
        server.wait_until_held(lambda held: held == 0)


def test_fragments_take_no_more_memory_than_their_bytes() -> None:
    count = 20_000
    with echoing() as server, raw(server) as found:
        found.sendall(frame(0x01))
        for sent in (count, 2 * count):  # the first time, everything is used once
            tracemalloc.start()
            found.sendall(count * (frame(0x00) + frame(0x00, b"a")))
            server.wait_until_held(lambda held, sent=sent: held == sent)  # type: ignore[misc]
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert taken < 4 * count
        found.sendall(frame(0x80))
        assert exactly(found, 4)[:1] == b"\x81"


def test_a_message_that_goes_on_without_bytes_must_end_in_time() -> None:
    with echoing(message_timeout_s=0.3) as server, raw(server) as found:
        found.sendall(frame(0x01))
        with suppress(OSError):
            for _ in range(100):
                found.sendall(1000 * frame(0x00))
                time.sleep(0.01)
        assert closed(found)[0] == 1008
        server.wait_until_held(lambda held: held == 0)


def test_a_socket_that_has_failed_holds_only_what_the_app_has_received() -> None:
    """And not until it is closed: a client that does not read may delay that."""
    with echoing() as server, raw(server) as found:
        server.gate.clear()
        found.sendall(3 * frame(0x82, bytes(100)))
        server.wait_until_held(lambda held: held == 3 * (100 + MESSAGE_BYTES))
        found.sendall(frame(0x83))
        time.sleep(0.2)  # the second is not read before the first
        assert server.messages.held == 3 * (100 + MESSAGE_BYTES)
        server.gate.set()
        assert exactly(found, 102)[:2] == b"\x82\x64"
        server.wait_until_held(lambda held: held == 0)


def test_messages_that_the_app_has_not_received_are_forgotten_if_the_socket_fails() -> None:
    with echoing() as server, raw(server) as found:
        server.gate.clear()
        found.sendall(frame(0x82, bytes(100)))
        server.wait_until_held(lambda held: held == 100 + MESSAGE_BYTES)
        found.sendall(frame(0x02, bytes(60)))
        time.sleep(0.1)
        found.sendall(frame(0x82))  # not a continuation
        assert closed(found)[0] == 1002
        assert server.messages.held == 100 + MESSAGE_BYTES
        server.gate.set()
        server.wait_until_held(lambda held: held == 0)


def test_messages_that_are_refused_together_are_all_forgotten() -> None:
    with echoing(held=4 * MESSAGE_BYTES) as server, raw(server) as found:
        found.sendall(5 * frame(0x82))
        assert closed(found)[0] == 1013
        server.wait_until_held(lambda held: held == 0)


@pytest.mark.parametrize("following", [frame(0x89), frame(0x88), frame(0x88, b"\3\xe8"), b""])
@pytest.mark.parametrize(
    "message",
    [frame(0x81, b"\xff"), frame(0x81, b"a\xc3"), frame(0x01, b"\xc3") + frame(0x80, b"a")],
)
def test_what_is_not_text_is_refused_with_a_reason(message: bytes, following: bytes) -> None:
    """Whatever comes with it."""
    with echoing() as server, raw(server) as found:
        found.sendall(message + following)
        assert closed(found) == (1007, "message: must be UTF-8, but is not.")
        server.wait_until_held(lambda held: held == 0)


def test_a_text_may_be_split_anywhere() -> None:
    text = "äß☃🎉" * 3
    with echoing() as server, raw(server) as found:
        parts = [bytes([one]) for one in text.encode()]
        found.sendall(frame(0x01) + b"".join(frame(0x00, one) for one in parts) + frame(0x80))
        expected = bytes([0x81, len(parts)]) + text.encode()
        assert exactly(found, len(expected)) == expected


@pytest.mark.parametrize("early", [frame(0x83), frame(0x88), frame(0x88, b"\3\xe8"), frame(0x89)])
def test_a_client_that_does_not_wait_for_the_handshake_is_answered_or_closed(early: bytes) -> None:
    with echoing() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as found:
            found.sendall(HEAD + early)
            found.shutdown(socket.SHUT_WR)
            received = b""
            while part := found.recv(1 << 12):
                received += part
        assert received[:12] in (b"", b"HTTP/1.1 101")
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
                    "server: all messages together are too large. Try again later.",
                )
                server.wait_until_held(lambda held: held == 2 * LIMIT - 100)
            server.wait_until_held(lambda held: held == LIMIT)
            with server.open() as fourth:
                fourth.send(bytes(LIMIT - KIB))
                assert fourth.recv(timeout=30) == bytes(LIMIT - KIB)
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
