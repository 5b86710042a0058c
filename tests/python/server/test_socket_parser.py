"""The parser of a WebSocket keeps nothing of what it has returned."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from websockets.frames import Frame, Opcode

from sinkstream.server.socket_parser import SocketParser
from tests.python.server.socket_echo import HEAD, frame

SIZE = 8 << 20


def opened() -> SocketParser:
    parser = SocketParser(max_size=SIZE)
    parser.receive_data(HEAD)
    (request,) = parser.events_received()
    parser.send_response(parser.accept(request))
    parser.data_to_send()
    return parser


def long(first: int) -> bytes:
    return bytes([first, 0xFF]) + SIZE.to_bytes(8, "big") + bytes(4) + bytes(SIZE)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("first", [0x81, 0x82])
def test_no_frame_is_kept(first: int) -> None:
    parser, message = opened(), long(first)
    before = tracemalloc.get_traced_memory()[0]
    parser.receive_data(message)
    (event,) = parser.events_received()
    assert isinstance(event, Frame)
    assert bytes(event.data) == bytes(SIZE)
    del event
    assert tracemalloc.get_traced_memory()[0] - before < SIZE / 8


@pytest.mark.usefixtures("traced")
def test_the_text_of_a_message_is_not_made_as_a_whole() -> None:
    """Its characters would take four bytes each."""
    text = "🎉".encode() + b"a" * (SIZE - 4)
    parser, message = opened(), bytearray(long(0x81))
    message[-SIZE:] = text
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    parser.receive_data(message)
    assert tracemalloc.get_traced_memory()[1] - before < 3.5 * SIZE
    (event,) = parser.events_received()
    assert event.data == text  # type: ignore[union-attr]


def test_every_ping_is_answered_before_the_connection_is_closed() -> None:
    parser = opened()
    parser.receive_data(frame(0x89, b"a") + frame(0x89, b"b") + frame(0x88, b"\3\xe8"))
    assert parser.pongs == [b"\x8a\1a", b"\x8a\1b"]
    assert b"".join(parser.data_to_send()) == b"\x8a\1a\x8a\1b\x88\2\3\xe8"
    assert [event.opcode for event in parser.events_received()][-1] is Opcode.CLOSE  # type: ignore[union-attr]


def test_a_ping_before_the_handshake_is_not_answered() -> None:
    parser = SocketParser(max_size=SIZE)
    parser.receive_data(HEAD + frame(0x89, b"a"))
    assert parser.data_to_send() == []
