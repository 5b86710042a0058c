"""A small pool of threads for calls that take over a millisecond, so that the loop stays free."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.request.cancellation import checking
from sinkstream.server.admission import CALLER, KeyShares, Weights

_T = TypeVar("_T")

THREADS = 2
_RETRY_S = 0.1  # until a thread is tried again that could not be started


@dataclass(eq=False, slots=True)
class Cancellation:
    """Ends a call in another thread between two parts of its work.

    It refers to nothing of the call: an error holds the frame of `check`, and the call the error.
    """

    is_set: bool = False

    def check(self) -> None:
        """End the call, once it is cancelled."""
        if self.is_set:
            raise ReadingCancelled("server: the request was cancelled before its reply began.")


@dataclass(eq=False, slots=True)
class _Call:
    """A call that is queued or running."""

    call: Callable[[], Any]
    may_end: bool
    """Whether nothing is lost if it ends before it is complete."""
    tenant: str
    """Whose request it belongs to."""
    future: Future[Any] = field(default_factory=Future)
    cancellation: Cancellation = field(default_factory=Cancellation)
    cancel: Callable[[], object] | None = None
    """Cancels its wait, if possible."""


class Pool:
    """Runs blocking calls: JSON, tokenizing, templates, sessions, the store.

    Two are at work at a time. Those that wait, inside `waiting`, do not count. There are as many
    threads as calls have begun and not ended, and at most two more, which are idle.

    If there are several keys, three may be at work, but only two of the same key: however many long
    calls a key has, one of another begins at once. Keys take turns as for seats.

    Threads hand their places on without the event loop, which anyio's limiter needs for each: while
    a thousand streams keep the loop busy for 20 ms a turn, that lets a tenth of the calls pass.
    """

    def __init__(self, weights: Weights | None = None) -> None:
        lock = threading.Lock()  # of all below
        spare = 1 if len(weights or {}) > 1 else 0
        self._shares = KeyShares(THREADS + spare, weights or {}, reserve=spare)
        """Of what is at work."""
        self._may_begin = threading.Condition(lock)  # a call of the queue
        self._may_return = threading.Condition(lock)  # a call that has waited
        self._has_ended = threading.Condition(lock)  # a call, or a thread
        self._lock = lock
        self._queues: dict[str, deque[_Call]] = {}
        """By tenant; one whose call begins goes to the end."""
        self._threads: dict[threading.Thread, _Call | None] = {}  # and what they run
        self._starting: set[threading.Thread] = set()  # each will take a call of the queue
        self._idle = 0
        self._returning = 0  # they have waited, and go before those in the queue
        self._waiting = 0
        self._is_closed = False
        self._is_retrying = False
        self.context: Callable[[], AbstractContextManager[None]] = nullcontext
        """What each call runs in."""
        self._event_loop: asyncio.AbstractEventLoop | None = None
        """Of the last call."""

    @contextmanager
    def waiting(self, cancel: Callable[[], object] | None = None) -> Iterator[None]:
        """Let another call run while this one, in the block, waits for the model or for another.

        A call that needs what another one holds waits for it in such a block only. So a call may
        leave the block with what it has waited for. `cancel`, which ends the wait, is called if the
        task that has begun the call is cancelled. In a thread that is not of the pool, this does
        nothing.
        """
        call = self._threads.get(threading.current_thread())
        if call is None:
            yield
            return
        with self._lock:
            call.cancel = cancel
            self._shares.give_back(call.tenant)
            self._waiting += 1
            self._let_on()
        try:
            if call.cancellation.is_set and cancel is not None:
                cancel()
            yield
        finally:
            with self._lock:
                call.cancel = None
                self._returning += 1
                self._may_return.wait_for(lambda: self._shares.held < self._shares.limit)
                self._returning -= 1
                self._waiting -= 1
                self._shares.take(call.tenant)

    def _submit(self, call: Callable[[], Any], *, may_end: bool = False) -> _Call:
        queued = _Call(call, may_end, CALLER.get())
        with self._lock:
            if self._is_closed:
                raise RuntimeError(
                    "pool: the pool is closed. This is a bug in sinkstream; please report it."
                )
            self._event_loop = asyncio.get_running_loop()
            self._queues.setdefault(queued.tenant, deque()).append(queued)
            try:
                self._let_on()
            except RuntimeError:
                self._remove(queued)
                raise
        return queued

    def _remove(self, queued: _Call) -> None:
        """Take a call out of the queue. The caller holds the lock."""
        queue = self._queues.pop(queued.tenant)
        queue.remove(queued)
        if queue:  # the next call of this key comes after those of the others
            self._queues[queued.tenant] = queue

    def _let_on(self) -> None:
        """Let calls return or begin if there is room. The caller holds the lock."""
        self._may_return.notify()
        if not self._has_room(len(self._starting)):
            return
        if self._idle:
            self._may_begin.notify()
            return
        thread = threading.Thread(target=self._loop, name="sinkstream-server", daemon=True)
        self._starting.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._starting.discard(thread)
            if not self._threads:
                raise
            self._retry_later()  # those there are may all wait, and for long
        else:
            self._threads[thread] = None

    def _retry_later(self) -> None:
        """Try to start a thread again after a while. The caller holds the lock."""
        if not self._is_retrying and self._event_loop is not None:
            self._is_retrying = True
            with suppress(RuntimeError):  # the loop has ended, and the queue is about to be emptied
                self._event_loop.call_soon_threadsafe(
                    self._event_loop.call_later, _RETRY_S, self._retry
                )

    def _retry(self) -> None:
        with self._lock:
            self._is_retrying = False
            self._let_on()

    def _has_room(self, starting: int = 0) -> bool:
        """Return whether a call of the queue may begin. The caller holds the lock.

        As many threads as are `starting` will each take a call before that one.
        """
        at_work = self._shares.held + self._returning + starting
        queued = sum(map(len, self._queues.values()))
        return (
            at_work < self._shares.limit
            and queued > starting
            and self._shares.next_of(self._queues) is not None
        )

    def _loop(self) -> None:
        while (queued := self._next()) is not None:
            with self.context():
                _run(queued)
            tenant = queued.tenant
            del queued  # what it holds is not kept while the thread is idle
            with self._lock:
                self._threads[threading.current_thread()] = None
                self._shares.give_back(tenant)
                self._may_return.notify()
                self._has_ended.notify_all()

    def _next(self) -> _Call | None:
        """Return a call that begins now, or None if the thread is to end."""
        with self._lock:
            self._starting.discard(threading.current_thread())
            if self._idle < self._shares.limit:
                self._idle += 1
                self._may_begin.wait_for(lambda: self._has_room() or self._is_closed)
                self._idle -= 1
                if self._has_room():
                    queued = self._queues[self._shares.next_of(self._queues) or ""][0]
                    self._remove(queued)
                    self._shares.take(queued.tenant)
                    self._threads[threading.current_thread()] = queued
                    self._let_on()
                    return queued
            del self._threads[threading.current_thread()]
            self._has_ended.notify_all()
            self._let_on()
            return None

    async def run(
        self, call: Callable[[], _T], discard: Callable[[_T], object] = lambda _: None
    ) -> _T:
        """Return what a call returns, or raise its error.

        If the task is cancelled, a call that has not begun never begins. If it has begun, it ends
        as soon as it can. Its result goes to `discard` before the cancellation is raised.
        """
        queued = self._submit(call, may_end=True)
        future: Future[_T] = queued.future
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not future.cancel():
                self._cancel_wait(queued)
                await _until_done(waiting)
                if future.exception() is None:
                    await _until_done(self.submit(partial(discard, future.result())))
            raise
        finally:
            del queued, future, waiting  # or an error, which holds this frame, would hold itself

    async def run_if(self, is_long: bool, call: Callable[[], _T]) -> _T:
        """Return what a call returns, which runs here only if it takes long."""
        return await self.run(call) if is_long else call()

    def submit(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Begin a call that is completed even if no task waits for it."""
        return asyncio.wrap_future(self._submit(call).future)

    def cancel_waits(self) -> None:
        """Cancel the waits of all calls, if possible."""
        with self._lock:
            running = [call for call in self._threads.values() if call is not None]
        for call in running:
            self._cancel_wait(call)

    def _cancel_wait(self, call: _Call) -> None:
        with self._lock:
            call.cancellation.is_set = True
            cancel = call.cancel
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """End the threads after the calls that have begun, which need not wait any longer."""
        self.cancel_waits()
        with self._lock:
            for queue in self._queues.values():
                for queued in queue:
                    queued.future.cancel()
            self._queues.clear()
            self._has_ended.wait_for(lambda: self._shares.held + self._waiting == 0)
            self._is_closed = True
            self._may_begin.notify_all()
            self._has_ended.wait_for(lambda: not self._threads)


def _run(queued: _Call) -> None:
    future = queued.future
    if not future.set_running_or_notify_cancel():
        return
    try:
        with checking(queued.cancellation.check) if queued.may_end else nullcontext():
            result = queued.call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        del queued, future  # or the error, which holds this frame, would hold itself


async def _until_done(waiting: asyncio.Future[Any]) -> None:
    while not waiting.done():
        with suppress(asyncio.CancelledError):  # the first cancellation will be raised
            await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # or the loop logs that it was never asked for
