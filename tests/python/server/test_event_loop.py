"""The server's event loop handles a few connections in a turn, and all of them in the end."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import time

import pytest

from sinkstream.server.event_loop import AT_ONCE, FewAtOnce, new_event_loop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs epoll")


def test_a_crowd_that_sends_at_once_is_read_a_few_at_a_time_and_in_turn() -> None:
    pairs = [socket.socketpair() for _ in range(10 * AT_ONCE)]
    selector = FewAtOnce()
    for here, there in pairs:
        selector.register(here, selectors.EVENT_READ)
        there.send(b"x")  # it is never read: all stay ready
    seen = [{key.fileobj for key, _ in selector.select(0)} for _ in range(10)]
    assert [len(some) for some in seen] == [AT_ONCE] * 10
    assert set().union(*seen) == {here for here, _ in pairs}
    selector.close()
    for pair in pairs:
        for end in pair:
            end.close()


def test_only_what_is_asked_for_is_returned() -> None:
    here, there = socket.socketpair()
    with here, FewAtOnce() as selector:
        selector.register(here, selectors.EVENT_READ, data="reads")
        assert selector.select(0) == []
        assert selector.select(0.001) == []
        there.close()
        assert [(key.data, events) for key, events in selector.select(None)] == [
            ("reads", selectors.EVENT_READ)
        ]
        selector.modify(here, selectors.EVENT_WRITE, data="writes")
        assert [(key.data, events) for key, events in selector.select(None)] == [
            ("writes", selectors.EVENT_WRITE)
        ]
        selector.unregister(here)
        assert selector.select(0) == []


def test_a_timer_is_not_called_early() -> None:
    async def main() -> float:
        began = time.monotonic()
        await asyncio.sleep(0.0203)
        return time.monotonic() - began

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(main()) >= 0.0203


def test_closing_leaves_no_file_open() -> None:
    selector = FewAtOnce()
    epolls = selector.fileno(), selector._epoll.fileno()
    selector.close()
    for number in epolls:
        with pytest.raises(OSError, match="Bad file descriptor"):
            socket.socket(fileno=number)
