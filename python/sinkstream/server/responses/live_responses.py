"""Responses in progress, and for a short time those that the store does not have."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from sinkstream.conversations.promises import Promise
from sinkstream.conversations.turns import Turn, TurnEnd
from sinkstream.server.errors import ApiError
from sinkstream.server.pool import Pool
from sinkstream.server.request_log import RequestLog
from sinkstream.server.responses.response_events import Events
from sinkstream.server.responses.response_object import Resources
from sinkstream.server.responses.stored_responses import Opening

_T = TypeVar("_T")
_KEPT_S = 60.0
_KEPT = 256  # of responses that have ended
_KEPT_BYTES = 32 << 20  # of them, but for the last one
_LEAST_BYTES = 1024  # that one takes
_UNSTORED = 1024  # whose openings are remembered
_BATCH = 256  # events that are made at a time


class Live:
    """A response in progress, on one event loop. Any number of clients may follow it."""

    def __init__(self, resources: Resources, messages: list[dict[str, Any]]) -> None:
        """Follow a response that has read `messages`."""
        self.resources = resources
        self.state = resources.state
        self.events = Events(resources)
        self.messages: list[dict[str, Any]] | None = messages
        """The input; None if it is to be read from the store, or cannot be listed."""
        self.turn: Turn | None = None
        """None before the reply begins."""
        self.end: TurnEnd | None = None
        """None before the turn is committed."""
        self.queued_s = 0.0
        """How long the response has waited for a seat, known when it ends."""
        self.failure: ApiError | None = None
        self.promise: Promise | None = None
        """What is written before a client is told that it may come back for the reply."""
        self.is_promised = False
        """Whether it is written."""
        self.is_announced = False
        """Whether a client may know of the response."""
        self.task: asyncio.Task[None] | None = None
        """Generates it; None once it has ended."""
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake those that wait for more."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def note(self, log: RequestLog) -> None:
        """Add what the response has cost, and how it ended, to the log of its request."""
        log.queued_s = max(log.queued_s, self.queued_s)
        if self.turn is not None and self.end is not None:
            log.note_window([(self.turn.facts, self.end)])
        outcome = self.state.outcome
        if outcome is not None and outcome.usage is not None:
            log.prompt_tokens += outcome.usage["input_tokens"]
            log.generated_tokens += outcome.usage["output_tokens"]
        log.finish = self.failure.code if self.failure is not None else self.state.status

    async def promised(self) -> None:
        """Wait until the promise is written, or the response ends."""
        while not self.is_promised and self.state.outcome is None:
            await self._changed.wait()

    async def begun(self) -> None:
        """Wait until the reply begins, or the response ends."""
        while not self.state.is_begun and self.state.outcome is None:
            await self._changed.wait()

    async def admitted(self, within_s: float) -> None:
        """Wait until the reply begins, but not for a seat; raise the error if it was refused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.begun()
        if self.failure is not None and not self.state.is_begun:
            raise self.failure
        self.is_announced = True

    async def ended(self) -> None:
        """Wait until the response ends."""
        while self.state.outcome is None:
            await self._changed.wait()

    async def follow(
        self, pool: Pool, write: Callable[[dict[str, Any]], bytes], after: int = -1
    ) -> AsyncIterator[list[bytes]]:
        """Yield the events after a number, as `write` returns them, until the response ends."""

        def written(begin: int, end: int) -> list[bytes]:
            return [write(self.events.event(i)) for i in range(begin, end)]

        number = after + 1
        while True:
            if number < self.events.count:
                end = min(self.events.count, number + _BATCH)
                # What is there already does not change, so that another thread may read it.
                yield await pool.run_if(self.state.is_long, partial(written, number, end))
                number = end
            elif self.state.outcome is not None:
                return
            else:
                await self._changed.wait()

    async def cancel(self) -> None:
        """End the response if it has not ended, and wait until what was generated is kept."""
        if self.task is not None:
            if not self.task.cancelling():  # a second time would interrupt its end
                self.task.cancel()  # no effect if it has ended
            await asyncio.wait({self.task})

    def drop_messages(self) -> None:
        """Drop the input of a reply that has begun, unless it is nowhere else and may be listed."""
        if self.state.request_fields["store"] or not self.state.is_background:
            self.messages = None

    def drop_task(self) -> None:
        """Drop the task, which has ended: if it was cancelled, it holds this response."""
        self.task = None


class LiveResponses:
    """Finds live responses by their ids. Belongs to one event loop."""

    def __init__(self) -> None:
        self._found: dict[str, Live] = {}
        self._ended: OrderedDict[str, asyncio.TimerHandle] = OrderedDict()
        self._unstored: OrderedDict[tuple[str, str], Opening] = OrderedDict()

    def add(self, live: Live) -> None:
        """Make a response findable."""
        self._found[live.state.id] = live

    def find(self, tenant: str, name: str) -> Live | None:
        """Return a tenant's response."""
        live = self._found.get(name)
        return live if live is not None and live.state.tenant == tenant else None

    def forget(self, name: str) -> None:
        """Make a response unfindable."""
        self._found.pop(name, None)
        timer = self._ended.pop(name, None)
        if timer is not None:
            timer.cancel()

    def forget_later(self, name: str) -> None:
        """Keep a response that has ended findable for a while: it is nowhere else."""
        loop = asyncio.get_running_loop()
        self._ended[name] = loop.call_later(_KEPT_S, self.forget, name)
        sizes = {name: self._found[name].state.size for name in self._ended}
        while len(sizes) > _KEPT or (len(sizes) > 1 and sum(sizes.values()) > _KEPT_BYTES):
            oldest = _oldest_of_most(sizes, lambda name: self._found[name].state.tenant)
            self.forget(oldest)
            del sizes[oldest]

    def note_unstored(self, tenant: str, name: str, opening: Opening) -> None:
        """Remember the opening of a response that is not stored."""
        self._unstored[tenant, name] = opening
        while len(self._unstored) > _UNSTORED:
            sizes = dict.fromkeys(self._unstored, 0)  # an opening is no larger than the least
            del self._unstored[_oldest_of_most(sizes, itemgetter(0))]

    def is_unstored(self, tenant: str, name: str) -> bool:
        """Return whether an unstored response is remembered."""
        return (tenant, name) in self._unstored

    def opening_of(self, tenant: str, name: str) -> Opening:
        """Return the opening of such a response."""
        return self._unstored[tenant, name]


def _oldest_of_most(sizes: Mapping[_T, int], tenant_of: Callable[[_T], str]) -> _T:
    """Return the first, which is the oldest, of those of the tenant that takes the most bytes."""
    taken: Counter[str] = Counter()
    for name, size in sizes.items():
        taken[tenant_of(name)] += _LEAST_BYTES + size
    most = taken.most_common(1)[0][0]
    return next(name for name in sizes if tenant_of(name) == most)
