"""Runs the replies of one request: they are admitted together, and each waits for a seat.

A reply gives up its seat when it ends, so that a request may have more replies than there are
seats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.conversations.turns import Turn, TurnEnd
from sinkstream.observe.activities import ACTIVITIES
from sinkstream.request.options import StreamOptions
from sinkstream.request.stream_request import Origin, originating
from sinkstream.server.errors import ApiError, from_exception, internal, unavailable
from sinkstream.server.request_log import RequestLog
from sinkstream.server.service import Service
from sinkstream.server.stalled_engine import leave

logger = logging.getLogger("sinkstream.server")

_T = TypeVar("_T")
_GRACE_S = 1.0  # in which a reply whose time is over ends by itself, with what it has
Start = Callable[[], Turn]
"""Begins a reply; blocks."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On whose behalf the replies of a request run, and how."""

    tenant: str = ""
    arrived_at: float = field(default_factory=time.monotonic)
    timeout_s: float | None = None
    """When the request ends, counted from its arrival."""
    priority: int = 0
    """Of the replies of a key that wait for seats, lower ones begin first."""
    size: int = 0
    """Bytes of the request, which is held until all of its replies have begun."""

    @property
    def left_s(self) -> float | None:
        """Return the seconds in which its replies must have begun; None if it has no limit."""
        return _left_s(self.arrived_at, self.timeout_s)


def _left_s(arrived_at: float, timeout_s: float | None) -> float | None:
    return None if timeout_s is None else arrived_at + timeout_s + _GRACE_S - time.monotonic()


@asynccontextmanager
async def in_time(arrived_at: float, timeout_s: float | None) -> AsyncIterator[None]:
    """End what precedes a reply, such as the compilation of a grammar, when its request ends.

    Raises:
        ApiError: It has not ended by then.
    """
    limit = asyncio.timeout(_left_s(arrived_at, timeout_s))
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        assert timeout_s is not None
        raise _late(timeout_s) from None


def terms_of(service: Service, log: RequestLog, options: StreamOptions, priority: int = 0) -> Terms:
    """Return the terms of a request, and set `timeout_s` of its options.

    `priority` holds if the request sets none.
    """
    most = service.config.max_reply_s or None
    timeout_s = options.get("timeout_s")
    if timeout_s is None or (most is not None and timeout_s > most):
        timeout_s = options["timeout_s"] = most
    is_valid = timeout_s is not None and timeout_s > 0  # any other is refused by the engine
    return Terms(
        log.tenant,
        log.arrived_at,
        timeout_s if is_valid else None,
        options.get("priority") or priority,
        log.parsed_bytes,
    )


@dataclass(slots=True)
class _Wait:
    """A reply's wait for a seat. An error while it begins holds this, and not the reply."""

    queued_s: float = 0.0


class Reply:
    """One reply of a request: it waits for a seat, begins, and is ended."""

    def __init__(
        self,
        index: int,
        start: Start,
        service: Service,
        terms: Terms,
        names: Mapping[str, str],
        asked_by: str = "",
    ) -> None:
        self.index = index
        self._service = service
        self._terms = terms
        self._wait = _Wait()
        self._start: Callable[[], Coroutine[Any, Any, Turn]] | None
        """Holds the request; None once it has been called."""
        self._asked_by = asked_by
        self._start = partial(_begin, start, service, terms, names, self._wait)
        self.has_begun = asyncio.Event()
        """Whether it does not hold its request any longer."""
        self._beginning: asyncio.Task[Turn] | None = None
        self._ending: asyncio.Future[TurnEnd] | None = None
        self._is_late = False
        """Whether the request's time was over before it began."""

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
        """Return the turn once it has begun; None if that takes longer than `within_s`.

        Raises:
            ApiError: It has not begun before the request's end, or it fails.
        """
        if self._start is not None:
            start, self._start = self._start, None
            self._beginning = asyncio.create_task(start())
            self._beginning.add_done_callback(lambda _: self.has_begun.set())
            del start
        assert self._beginning is not None
        left_s = self._terms.left_s
        limits = [limit for limit in (within_s, left_s) if limit is not None]
        await asyncio.wait([self._beginning], timeout=min(limits, default=None))
        if self._beginning.done():
            return self._warned(self._beginning.result())
        if left_s is not None and (within_s is None or left_s <= within_s):
            self._is_late = True
            raise _late(self._terms.timeout_s or 0.0)
        return None

    def _warned(self, turn: Turn) -> Turn:
        """Return a turn that has begun; log what the model does not see of its prompt, once."""
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
            self._service.count_reply(self._terms.tenant, turn.facts, end)
        self._service.replies.discard(turn.stream)
        self._service.seats.release(self._terms.tenant)

    async def finish(self) -> None:
        """End the turn, whatever its progress."""
        if self._beginning is None:
            return
        self._beginning.cancel()  # no effect if it has begun
        if self._is_late:  # its client is not to wait for what cannot be interrupted
            leave(self._service, self._beginning)
            return
        await asyncio.wait([self._beginning])
        turn = self.begun
        if turn is None:
            self._beginning = None  # its error may hold this reply
        else:
            turn.stream.close()
            await asyncio.wait([self._end()])


async def _begin(
    start: Start, service: Service, terms: Terms, names: Mapping[str, str], wait: _Wait
) -> Turn:
    """Return a reply's turn once there is a seat for it, and it has begun."""
    await service.take_seat(wait, terms.tenant, terms.priority)
    try:
        begin = partial(in_origin, start, service, terms)
        turn = await service.pool.run(begin, discard=_drop)
    except BaseException as error:
        service.seats.release(terms.tenant)
        if isinstance(error, ReadingCancelled):
            raise service.reason_of_cancel() from None
        raise from_exception(error, names) or error from None
    service.replies.add(turn.stream)
    return turn


def in_origin(call: Callable[[], _T], service: Service, terms: Terms) -> _T:
    """Call what needs the model: its work there is the key's, and its time has begun before."""
    weight = service.seats.shares.weight(terms.tenant)
    with ACTIVITIES.during("engine"), originating(Origin(terms.tenant, weight, terms.arrived_at)):
        return call()


def _late(timeout_s: float) -> ApiError:
    return unavailable(
        "timeout",
        f"server: the reply has not begun within {timeout_s:g} s, the request's `timeout_s` "
        "or the server's limit. Try again later, or allow more.",
    )


@asynccontextmanager
async def running(
    service: Service,
    starts: Sequence[Start],
    terms: Terms,
    names: Mapping[str, str],
    asked_by: str = "",
) -> AsyncIterator[list[Reply]]:
    """Admit replies, one for each of `starts`; the block begins them, and ends with them.

    Args:
        service: The server.
        starts: Begin the replies.
        terms: On whose behalf they run, and how.
        names: Maps arguments of `Model.stream` to the request's fields, for errors.
        asked_by: The id under which the log warns of the request's prompt, once.
    """
    count = len(starts)
    waiting, tenant = service.waiting_requests, terms.tenant
    service.admission.enter(count, tenant)
    try:
        waiting.take(terms.size, tenant)
    except BaseException:
        service.admission.leave(count, tenant)
        raise
    replies = [
        Reply(index, start, service, terms, names, asked_by if index == 0 else "")
        for index, start in enumerate(starts)
    ]
    del starts, names  # the replies hold them no longer than they need them
    holding = asyncio.create_task(_until_begun(replies))
    holding.add_done_callback(lambda _: waiting.give_back(terms.size, tenant))
    try:
        yield replies
    finally:
        try:
            await _finish(replies)
        finally:
            holding.cancel()
            service.admission.leave(count, tenant)


async def _until_begun(replies: Sequence[Reply]) -> None:
    """Wait until no reply holds its request any longer."""
    for reply in replies:
        await reply.has_begun.wait()


async def _finish(replies: Sequence[Reply]) -> None:
    for reply in replies:
        if reply.begun is not None:
            reply.begun.stream.close()
    for reply in replies:
        await reply.finish()


def _end(turn: Turn, service: Service) -> TurnEnd:
    with ACTIVITIES.during("store"):
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
