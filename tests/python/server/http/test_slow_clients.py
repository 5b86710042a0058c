"""Clients that do not read: they cost little memory, and are cut off after a time."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sinkstream.server.http_limits import Connections
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Running,
    read_all,
    running,
    unchunked,
)

SEND_TIMEOUT_S = 1.0
CLIENTS = 16
SMALL = 4096  # of the kernel's buffer of a client, so that it is full soon


@pytest.fixture(scope="module")
def impatient(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server that waits only briefly for its clients."""
    timeout, folder = SEND_TIMEOUT_S, tiny_folder("llama")
    with running(folder, sequences=CLIENTS, send_timeout_s=timeout, flush_s=0.0) as found:
        yield found


def is_alone(server: Running) -> bool:
    """Return whether the connection that asks is the only one."""
    return server.metric("sinkstream_open_connections") == 1


def test_a_stream_that_is_not_read_is_cancelled_and_cut(impatient: Running) -> None:
    with impatient.begin(CHAT, {"messages": HELLO, **without_prompt()}, SMALL) as connection:
        impatient.wait_until(lambda: impatient.model.stats()["running"] == 1, "begun")
        impatient.wait_until(lambda: impatient.model.stats()["running"] == 0, "cancelled")
        impatient.wait_until(lambda: is_alone(impatient), "cut")
        with pytest.raises(ConnectionResetError):
            read_all(connection)


def without_prompt() -> dict[str, object]:
    return {name: value for name, value in ENDLESS.items() if name != "prompt"}


def test_a_whole_reply_that_is_not_read_is_dropped(impatient: Running) -> None:
    """Its last byte was written long ago, so only the connection is left."""
    long = {"prompt": "the " * 100_000, "echo": True, "max_tokens": 1, "seed": 1, "n": 2}
    with impatient.begin(COMPLETIONS, long, SMALL) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        impatient.wait_until(lambda: is_alone(impatient), "cut")


def test_a_client_that_reads_now_and_then_is_served(impatient: Running) -> None:
    """Longer than the limit in all, but never at once."""
    body = {**ENDLESS, "max_tokens": 6_000}
    answer, began_at = b"", time.monotonic()
    with impatient.begin(COMPLETIONS, body, SMALL) as connection:
        while part := connection.recv(1 << 15):
            answer += part
            if time.monotonic() - began_at < 3 * SEND_TIMEOUT_S:
                time.sleep(SEND_TIMEOUT_S / 3)
            if answer.endswith(b"0\r\n\r\n"):
                break
    text, is_complete = unchunked(answer)
    assert is_complete
    assert text.endswith(b"data: [DONE]\n\n")


def memory_kb() -> int:
    """Return the memory of this process that is backed by no file."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def test_a_stalled_client_costs_little_memory(tiny_folder: Callable[[str], Path]) -> None:
    body = {**ENDLESS, "max_tokens": 3_000}
    with running(tiny_folder("llama"), sequences=CLIENTS, flush_s=0.0) as server:
        sockets = [server.begin(COMPLETIONS, body) for _ in range(CLIENTS)]
        for connection in sockets:  # so that everything has been used once
            with connection:
                while not connection.recv(1 << 16).endswith(b"0\r\n\r\n"):
                    pass
        server.wait_until(lambda: is_alone(server), "all have left")
        before = memory_kb()
        with ExitStack() as stack:
            for _ in range(CLIENTS):
                stack.enter_context(server.begin(COMPLETIONS, ENDLESS, SMALL))
            server.wait_until(lambda: server.model.stats()["parked"] == CLIENTS, "all stalled")
            grown = (memory_kb() - before) / CLIENTS
    assert grown <= 64, f"{grown} KB a client"


class FakeTransport:
    """A transport whose buffer a test sets."""

    def __init__(self) -> None:
        self.held = 0
        self.socket = socket.socket()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.socket

    def get_write_buffer_size(self) -> int:
        return self.held

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0


class FakeLoop:
    """An event loop whose time a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.new_event_loop()

    def call_later(self, delay: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now + delay, call, (), self._loop)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Call what is due after some time."""
        self.now += seconds
        due = [timer for timer in self._timers if timer.when() <= self.now]
        self._timers = [timer for timer in self._timers if timer not in due]
        for timer in due:
            if not timer.cancelled():
                timer._run()

    def close(self) -> None:
        self._loop.close()


@pytest.mark.parametrize("takes", [True, False])
def test_only_a_client_that_takes_no_byte_is_cut(takes: bool) -> None:
    transport, loop = FakeTransport(), FakeLoop()
    connection = Connections(4, 5.0).enter(transport, loop)  # type: ignore[arg-type]
    transport.held = 100
    connection.pause()
    for _ in range(5):
        loop.advance(3.0)
        transport.held -= takes
    connection.resume()
    connection.leave()
    loop.close()
    transport.socket.close()
    assert transport.is_aborted is not takes


def test_a_stalled_client_is_named_in_the_log(
    impatient: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sinkstream.server")
    with impatient.begin(COMPLETIONS, ENDLESS, SMALL):
        impatient.wait_until(lambda: impatient.model.stats()["running"] == 1, "begun")
        impatient.wait_until(lambda: "finish=client_stalled" in caplog.text, "named")
