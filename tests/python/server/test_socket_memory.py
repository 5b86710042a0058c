"""What a WebSocket has told its app is kept nowhere else; every ping is answered."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.socket_echo import Echo, echoing, exactly, frame, raw

SIZE = 8 << 20


@pytest.fixture
def server() -> Iterator[Echo]:
    with echoing(limit=SIZE, held=4 * SIZE) as found:
        yield found


def long(first: int, size: int) -> bytes:
    return bytes([first, 0xFF]) + size.to_bytes(8, "big") + bytes(4) + bytes(size)


@pytest.mark.parametrize(
    "message",
    [(0x81, 0), (0x82, 0), (0x01, 0x80), (0x02, 0x80)],
    ids=["text", "bytes", "text in parts", "bytes in parts"],
)
def test_no_message_is_kept(server: Echo, message: tuple[int, int]) -> None:
    """Nor its last frame, although the client sends nothing else."""
    first, last = message
    sent = long(first, SIZE) if not last else long(first, SIZE // 2) + long(last, SIZE // 2)
    with raw(server) as found:
        tracemalloc.start()
        try:
            found.sendall(sent)
            received = exactly(found, 10 + SIZE)
            assert received[10:] == bytes(SIZE)
            del received
            end = time.monotonic() + 30
            # What has been sent is freed just after it has arrived.
            while (kept := tracemalloc.get_traced_memory()[0]) >= SIZE / 8:
                assert time.monotonic() < end, kept
                time.sleep(0.01)
        finally:
            tracemalloc.stop()


def test_every_ping_is_answered_before_the_connection_is_closed(server: Echo) -> None:
    with raw(server) as found:
        found.sendall(frame(0x89, b"a") + frame(0x89, b"b") + frame(0x88, b"\3\xe8"))
        assert exactly(found, 10) == b"\x8a\1a\x8a\1b\x88\2\3\xe8"
        assert found.recv(1) == b""
