"""Runs the replies of one request: they are admitted together, and each waits for a seat.

A reply gives up its seat when it ends, so that a request may have more replies than there are
seats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.conversations.turns import Turn, TurnEnd
from sinkstream.server.errors import ApiError, from_exception, internal
from sinkstream.server.service import Service

logger = logging.getLogger("sinkstream.server")

Start = Callable[[], Turn]
"""Begins a reply; blocks."""


@dataclass(slots=True)
class _Wait:
    """A reply's wait for a seat. An error while it begins holds this, and not the reply."""

    queued_s: float = 0.0


class Reply:
    """One reply of a request: it waits for a seat, begins, and is ended."""

    def __init__(
        self, index: int, start: Start, service: Service, names: Mapping[str, str], asked_by: str
    ) -> None:
        self.index = index
        self._service = service
        self._wait = _Wait()
        self._start: Callable[[], Coroutine[Any, Any, Turn]] | None
        """Holds the request; None once it has been called."""
        self._asked_by = asked_by
        self._start = partial(_begin, start, service, names, self._wait)
        self._beginning: asyncio.Task[Turn] | None = None
        self._ending: asyncio.Future[TurnEnd] | None = None

    @property
    def queued_s(self) -> float:
        """Return how long it has waited for a seat."""
        return self._wait.queued_s

    @property
    def begun(self) -> Turn | None:
        """Return the turn; None before it begins."""
        task = self._beginning
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    @property
    def ended(self) -> TurnEnd | None:
        """Return how the turn ended; None before it is committed, or if it cannot be."""
        ending = self._ending
        if ending is None or not ending.done() or ending.cancelled() or ending.exception():
            return None
        return ending.result()

    async def begin(self, within_s: float | None = None) -> Turn | None:
        """Return the turn once it has begun; None if that takes longer than `within_s`."""
        if self._start is not None:
            start, self._start = self._start, None
            self._beginning = asyncio.create_task(start())
            del start
        assert self._beginning is not None
        await asyncio.wait([self._beginning], timeout=within_s)
        if not self._beginning.done():
            return None
        turn = self._beginning.result()
        if turn.facts.warning and self._asked_by:
            logger.warning("%s %s", self._asked_by, turn.facts.warning)
            self._asked_by = ""
        return turn

    async def end(self) -> TurnEnd:
        """Commit the turn, once, even if the waiting task is cancelled.

        Raise an error if the server has ended the reply, not the model.
        """
        end = await asyncio.shield(self._end())
        if end.finish_reason in ("cancelled", "error"):
            raise self._service.reason_of_cancel()
        return end

    def _end(self) -> asyncio.Future[TurnEnd]:
        if self._ending is None:
            turn = self.begun
            assert turn is not None
            self._ending = self._service.pool.submit(partial(_end, turn, self._service))
            self._ending.add_done_callback(lambda _: self._leave(turn))
        return self._ending

    def _leave(self, turn: Turn) -> None:
        if (end := self.ended) is not None:
            self._service.count_window(turn.facts, end)
        self._service.replies.discard(turn.stream)
        self._service.seats.release()

    async def finish(self) -> None:
        """End the turn, whatever its progress."""
        if self._beginning is None:
            return
        self._beginning.cancel()  # no effect if it has begun
        await asyncio.wait([self._beginning])
        turn = self.begun
        if turn is None:
            self._beginning = None  # its error may hold this reply
        else:
            turn.stream.close()
            await asyncio.wait([self._end()])


async def _begin(start: Start, service: Service, names: Mapping[str, str], wait: _Wait) -> Turn:
    """Return a reply's turn once there is a seat for it, and it has begun."""
    await service.take_seat(wait)
    try:
        with service.health.beginning():
            turn = await service.pool.run(start, discard=_drop)
    except BaseException as error:
        service.seats.release()
        if isinstance(error, ReadingCancelled):
            raise service.reason_of_cancel() from None
        raise from_exception(error, names) or error from None
    service.replies.add(turn.stream)
    return turn


@asynccontextmanager
async def running(
    service: Service, starts: Sequence[Start], names: Mapping[str, str], asked_by: str
) -> AsyncIterator[list[Reply]]:
    """Admit replies, one for each of `starts`; the block begins them, and ends with them.

    Args:
        service: The server.
        starts: Begin the replies.
        names: Maps arguments of `Model.stream` to the request's fields, for errors.
        asked_by: The id under which the log warns of the request's prompt, once.
    """
    count = len(starts)
    service.admission.enter(count)
    replies = [
        Reply(index, start, service, names, asked_by if index == 0 else "")
        for index, start in enumerate(starts)
    ]
    del starts, names  # the replies hold them no longer than they need them
    try:
        yield replies
    finally:
        try:
            await _finish(replies)
        finally:
            service.admission.leave(count)


async def _finish(replies: Sequence[Reply]) -> None:
    for reply in replies:
        if reply.begun is not None:
            reply.begun.stream.close()
    for reply in replies:
        await reply.finish()


def _end(turn: Turn, service: Service) -> TurnEnd:
    end = turn.end()
    is_shortened = end.finish_reason == "cancelled" and turn.stream in service.shortened
    if is_shortened and end.stats.generated_tokens > 0:
        return replace(end, finish_reason="length")  # its client can go on from its node
    return end


def _drop(turn: Turn) -> None:
    turn.stream.close()
    turn.end()


def as_api_error(error: BaseException) -> ApiError:
    """Return the error response for a failure while a reply is read."""
    return from_exception(error) or internal()
