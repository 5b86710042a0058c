"""Two blocking calls at a time, not counting those that wait for the model."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.request.cancellation import check_wanted
from sinkstream.server.admission import CALLER
from sinkstream.server.pool import THREADS, Pool


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Calls:
    """Calls that block until they are told to go on."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.begun: list[str] = []
        self.at_work: set[str] = set()
        self._go_on: dict[str, threading.Event] = {}

    def blocking(self, name: str) -> Callable[[], str]:
        go_on = self._go_on[name] = threading.Event()

        def call() -> str:
            self.begun.append(name)
            self.at_work.add(name)
            assert go_on.wait(30)
            self.at_work.discard(name)
            return name

        return call

    def waiting(self, name: str) -> Callable[[], str]:
        """A call that first waits for the model."""
        go_on = self._go_on[name] = threading.Event()
        work = self.blocking(f"{name} again")

        def call() -> str:
            self.begun.append(name)
            with self._pool.waiting():
                assert go_on.wait(30)
            return work()

        return call

    def release(self, name: str) -> None:
        self._go_on[name].set()


def test_calls_that_wait_do_not_count() -> None:
    async def run() -> None:
        pool = Pool()
        calls = Calls(pool)
        waiting = [pool.submit(calls.waiting(f"w{i}")) for i in range(3)]
        others = [pool.submit(calls.blocking(f"b{i}")) for i in range(4)]
        await asyncio.to_thread(until, lambda: len(calls.begun) == 3 + THREADS)
        assert calls.at_work == {"b0", "b1"}
        # One that has waited comes back before those in the queue, but not while two others run.
        calls.release("w0")
        await asyncio.sleep(0.05)
        assert calls.at_work == {"b0", "b1"}
        calls.release("b0")
        await asyncio.to_thread(until, lambda: "w0 again" in calls.at_work)
        assert calls.at_work == {"b1", "w0 again"}
        for name in ("w1", "w2", "b1", "b2", "b3", "w0 again", "w1 again", "w2 again"):
            calls.release(name)
        assert await asyncio.gather(*waiting) == ["w0 again", "w1 again", "w2 again"]
        assert await asyncio.gather(*others) == ["b0", "b1", "b2", "b3"]
        await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_long_calls_of_a_key_leave_a_thread_for_another() -> None:
    async def run() -> None:
        pool = Pool({"a": 1.0, "b": 1.0, "c": 1.0})
        calls = Calls(pool)

        def submit(tenant: str, *names: str) -> list[asyncio.Future[str]]:
            CALLER.set(tenant)
            return [pool.submit(calls.blocking(name)) for name in names]

        futures = submit("a", "a0", "a1", "a2", "a3")
        await asyncio.to_thread(until, lambda: len(calls.begun) == 2)
        futures += submit("b", "b0", "b1")
        await asyncio.to_thread(until, lambda: len(calls.begun) == 3)
        assert calls.at_work == {"a0", "a1", "b0"}
        futures += submit("c", "c0")
        for ended, begun in (("a0", "c0"), ("a1", "a2"), ("c0", "b1"), ("b0", "a3")):
            calls.release(ended)
            await asyncio.to_thread(until, lambda name=begun: name in calls.begun)  # type: ignore
            assert calls.begun[-1] == begun
        for name in ("a2", "a3", "b1"):
            calls.release(name)
        await asyncio.gather(*futures)
        await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_closing_waits_for_what_has_begun() -> None:
    async def run() -> None:
        pool = Pool()
        calls = Calls(pool)
        begun = [pool.submit(calls.waiting("w")), pool.submit(calls.blocking("a"))]
        begun.append(pool.submit(calls.blocking("b")))
        queued = pool.submit(calls.blocking("never"))
        await asyncio.to_thread(until, lambda: len(calls.begun) == 3)
        closing = asyncio.create_task(asyncio.to_thread(pool.close))
        await asyncio.wait([queued])
        assert queued.cancelled()
        for name in ("a", "b", "w"):
            assert not closing.done()
            calls.release(name)
        calls.release("w again")
        await closing
        assert await asyncio.gather(*begun) == ["w again", "a", "b"]
        assert "never" not in calls.begun

    asyncio.run(run())


def test_errors_are_those_of_the_call() -> None:
    async def run() -> None:
        pool = Pool()

        def fail() -> None:
            with pool.waiting():
                raise ValueError("no")

        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await pool.run(fail)
        assert await pool.run(lambda: 5) == 5
        pool.close()

    asyncio.run(run())


def test_threads_do_not_grow_with_the_number_of_calls() -> None:
    async def run() -> None:
        pool = Pool()
        most = 0
        for _ in range(1000):
            for call in [pool.submit(lambda: None) for _ in range(5)]:
                await call
            most = max(most, len(pool._threads))
        assert most <= 2 * THREADS
        calls = Calls(pool)
        waiting = [pool.submit(calls.waiting(f"w{i}")) for i in range(20)]
        await asyncio.to_thread(until, lambda: len(calls.begun) == 20)
        for i in range(20):
            calls.release(f"w{i}")
            calls.release(f"w{i} again")
        await asyncio.gather(*waiting)
        threads = [one for one in threading.enumerate() if one.name == "sinkstream-server"]
        await asyncio.to_thread(until, lambda: sum(one.is_alive() for one in threads) <= THREADS)
        await asyncio.to_thread(pool.close)
        await asyncio.to_thread(until, lambda: not any(one.is_alive() for one in threads))

    asyncio.run(run())


def test_a_call_that_comes_back_goes_on_as_soon_as_another_waits() -> None:
    async def run() -> None:
        pool = Pool()
        calls = Calls(pool)
        back = pool.submit(calls.waiting("w"))
        await asyncio.to_thread(until, lambda: "w" in calls.begun)
        go_on = threading.Event()

        def waits_later() -> None:
            assert go_on.wait(30)
            with pool.waiting():
                assert ended.wait(30)

        ended = threading.Event()
        others = [pool.submit(waits_later), pool.submit(calls.blocking("b"))]
        await asyncio.to_thread(until, lambda: "b" in calls.at_work)
        calls.release("w")
        await asyncio.to_thread(until, lambda: pool._returning == 1)
        go_on.set()
        await asyncio.to_thread(until, lambda: "w again" in calls.at_work)
        ended.set()
        for name in ("w again", "b"):
            calls.release(name)
        await asyncio.gather(back, *others)
        await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_threads_of_others_wait_as_they_are() -> None:
    async def run() -> None:
        pool = Pool()
        calls = Calls(pool)
        begun = [pool.submit(calls.blocking(name)) for name in ("a", "b", "c")]
        await asyncio.to_thread(until, lambda: len(calls.begun) == 2)
        with pool.waiting():
            await asyncio.sleep(0.05)
            assert len(calls.begun) == 2
        for name in ("a", "b", "c"):
            calls.release(name)
        await asyncio.gather(*begun)
        await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_a_cancelled_call_stops_waiting() -> None:
    """Also if it was cancelled before it began to wait, and when the pool is closed."""

    async def run() -> None:
        pool = Pool()
        for is_early in (True, False):
            at_work, waits, go_on, ended = (threading.Event() for _ in range(4))

            def call(at_work=at_work, waits=waits, go_on=go_on, ended=ended) -> str:  # type: ignore
                at_work.set()
                assert go_on.wait(30)
                with pool.waiting(ended.set):
                    waits.set()
                    assert ended.wait(30)
                return "result"

            found: list[str] = []
            task = asyncio.create_task(pool.run(call, found.append))
            await asyncio.to_thread(at_work.wait)
            if is_early:
                task.cancel()
                await asyncio.sleep(0.02)
            go_on.set()
            await asyncio.to_thread(waits.wait)
            assert ended.is_set() == is_early
            task.cancel()
            await asyncio.wait([task], timeout=30)
            assert task.cancelled()
            assert found == ["result"]
        ended = threading.Event()

        def last() -> bool:
            with pool.waiting(ended.set):
                return ended.wait(30)

        future = pool.submit(last)
        await asyncio.to_thread(until, lambda: pool._waiting == 1)
        await asyncio.to_thread(pool.close)
        assert await future

    asyncio.run(run())


def test_nothing_is_logged_of_a_cancelled_call_that_fails() -> None:
    """Its error, and all that its frames hold, would live as long as the log's record."""
    logged: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: logged.append(context["message"])
        )
        pool = Pool()
        at_work, go_on = threading.Event(), threading.Event()

        def call() -> None:
            at_work.set()
            assert go_on.wait(30)
            raise ValueError("bad")

        task = asyncio.create_task(pool.run(call))
        await asyncio.to_thread(at_work.wait)
        task.cancel()
        await asyncio.sleep(0.02)
        go_on.set()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()
        del task
        await asyncio.to_thread(pool.close)
        gc.collect()

    asyncio.run(run())
    assert logged == []


def test_what_a_cancelled_call_held_is_freed_at_once() -> None:
    """Its error, which holds the frames, does not hold itself."""

    class Held:
        pass

    async def run() -> weakref.ref[Held]:
        pool = Pool()
        at_work, go_on = threading.Event(), threading.Event()

        def call(held: Held) -> None:
            at_work.set()
            assert go_on.wait(30)
            check_wanted()

        held = Held()
        found, task = weakref.ref(held), asyncio.create_task(pool.run(partial(call, held)))
        del held
        await asyncio.to_thread(at_work.wait)
        task.cancel()
        await asyncio.sleep(0.02)
        go_on.set()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()
        await asyncio.to_thread(pool.close)
        return found

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_submitted", [False, True])
def test_a_cancelled_call_ends_between_two_parts_of_its_work(is_submitted: bool) -> None:
    """But one whose result must not be lost is completed."""

    async def run() -> None:
        pool = Pool()
        at_work, go_on = threading.Event(), threading.Event()
        parts: list[int] = []

        def call() -> None:
            for part in range(3):
                check_wanted()
                parts.append(part)
                at_work.set()
                assert go_on.wait(30)

        task = asyncio.ensure_future(pool.submit(call) if is_submitted else pool.run(call))
        await asyncio.to_thread(at_work.wait)
        pool.cancel_waits()
        go_on.set()
        await asyncio.wait([task], timeout=30)
        if is_submitted:
            assert (parts, task.exception()) == ([0, 1, 2], None)
        else:
            assert parts == [0]
            assert isinstance(task.exception(), ReadingCancelled)
        await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_a_call_begins_once_there_are_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all calls that have begun wait for longer than that, such as for this one."""

    async def run() -> None:
        pool = Pool()
        calls = Calls(pool)
        waiting = pool.submit(calls.waiting("w"))
        await asyncio.to_thread(until, lambda: pool._waiting == 1)
        await asyncio.to_thread(until, lambda: "w" in calls.begun)
        tries, start = [], threading.Thread.start

        def fail(thread: threading.Thread) -> None:
            if thread.name == "sinkstream-server":
                tries.append(thread)
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", fail)
        later = [pool.submit(calls.blocking(name)) for name in ("a", "b")]
        for name in ("a", "b"):
            calls.release(name)
        while len(tries) < 2:
            await asyncio.sleep(0.01)
        assert "a" not in calls.begun
        monkeypatch.undo()
        assert await asyncio.wait_for(asyncio.gather(*later), 10) == ["a", "b"]
        for name in ("w", "w again"):
            calls.release(name)
        assert await waiting == "w again"
        await asyncio.to_thread(pool.close)

    asyncio.run(run())
