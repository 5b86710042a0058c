"""Spreads work that is due all at once over several turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

_AT_ONCE = 4
_TURN_S = 0.003
"""Of a turn that takes longer, for example because other threads hold the GIL, the next one lets
half as many tasks continue."""


class Slices:
    """Lets a limited number of tasks continue in each turn of one event loop, in order.

    Between the turns, the loop does what else is due. Otherwise a thousand streams that get a token
    at the same time would keep a new request waiting until all of them have handled it.
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        """Let at most `at_once` tasks continue in a turn."""
        self._most = at_once
        self._at_once = at_once
        self._left = at_once  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._began = 0.0  # this turn, if `_is_due`

    async def turn(self) -> None:
        """Return when the calling task may do a piece of work; at once if few are due."""
        if not self._take():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def add(self, future: asyncio.Future[None]) -> None:
        """Set a future, whose task waits for it, when the task may do a piece of work."""
        if future.done():
            return
        if self._take():
            future.set_result(None)
        else:
            self._waiting.append(future)

    def _take(self) -> bool:
        """Return whether one more task may continue in this turn."""
        if not self._is_due:
            self._await_next(asyncio.get_running_loop())
        if self._left == 0:  # otherwise none is waiting
            return False
        self._left -= 1
        return True

    def _await_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due, self._began = True, loop.time()
        loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the next turn."""
        is_late = loop.time() - self._began > _TURN_S
        self._at_once = (
            max(1, self._at_once // 2) if is_late else min(self._most, self._at_once + 1)
        )
        self._left = self._at_once
        while self._waiting and self._left > 0:
            future = self._waiting.popleft()
            if not future.done():  # its task was not cancelled
                future.set_result(None)
                self._left -= 1
        self._is_due = False
        if self._left < self._at_once:
            self._await_next(loop)
