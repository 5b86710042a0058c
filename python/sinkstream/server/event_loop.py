"""The server's event loop: in each turn it handles only a few of the connections that are ready."""

from __future__ import annotations

import asyncio
import math
import os
import select
import selectors
import sys

AT_ONCE = 8


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop; on Linux, its turns stay short when a thousand clients send at once."""
    if sys.platform != "linux":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(FewAtOnce())


if sys.platform == "linux":

    class FewAtOnce(selectors.EpollSelector):
        """A selector that returns a limited number of ready files; the others come next."""

        def __init__(self) -> None:
            """Select from none."""
            super().__init__()
            self._epoll = select.epoll.fromfd(os.dup(self.fileno()))

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Wait up to `timeout` seconds, or without limit; return what is ready.

            The kernel appends files that it has returned to the end of its list.
            """
            # In whole milliseconds, as epoll waits: rounded up, so that a timer is due afterwards.
            wait_s = -1 if timeout is None else math.ceil(max(timeout, 0) * 1e3) * 1e-3
            keys = self.get_map()
            found = ((keys.get(f), events) for f, events in self._epoll.poll(wait_s, AT_ONCE))
            return [
                (key, _as_selectors(events) & key.events)
                for key, events in found
                if key is not None
            ]

        def close(self) -> None:
            """Close both descriptors."""
            self._epoll.close()
            super().close()


def _as_selectors(events: int) -> int:
    """Return epoll's events as those of `selectors`: an error makes a file ready for both."""
    reads = selectors.EVENT_READ if events & ~select.EPOLLOUT else 0
    writes = selectors.EVENT_WRITE if events & ~select.EPOLLIN else 0
    return reads | writes
