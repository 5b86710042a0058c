"""Spreads work that is due all at once over several turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

_AT_ONCE = 8


class Slices:
    """Lets a limited number of tasks continue in each turn of one event loop, in order.

    Between the turns, the loop does what else is due. Otherwise a thousand streams that get a token
    at the same time would keep a new request waiting until all of them have handled it.
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        """Let `at_once` tasks continue in a turn."""
        self._at_once = at_once
        self._left = at_once  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def turn(self) -> None:
        """Return when the calling task may do a piece of work; at once if few are due."""
        loop = asyncio.get_running_loop()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin, loop)
        if self._left > 0:  # so none is waiting
            self._left -= 1
            return
        future = loop.create_future()
        self._waiting.append(future)
        await future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the next turn."""
        self._left = self._at_once
        while self._waiting and self._left > 0:
            future = self._waiting.popleft()
            if not future.done():  # its task was not cancelled
                future.set_result(None)
                self._left -= 1
        self._is_due = self._left < self._at_once
        if self._is_due:
            loop.call_soon(self._begin, loop)
