"""`in_thread`: whenever its task is cancelled, no part of the call keeps running."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sinkstream.streams.worker import Check, in_thread


def run(call: object) -> object:
    return asyncio.run(call)  # type: ignore[arg-type]


def test_the_result_and_the_error_are_those_of_the_call() -> None:
    async def main() -> None:
        discarded: list[int] = []
        assert await in_thread(lambda check: 5, discarded.append) == 5
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda check: 1 // 0, discarded.append)
        assert discarded == []

    run(main())


def test_other_tasks_run_meanwhile() -> None:
    async def main() -> None:
        let_go = threading.Event()
        task = asyncio.create_task(in_thread(lambda check: let_go.wait(10), lambda _: None))
        await asyncio.sleep(0.01)
        assert not task.done()
        let_go.set()
        assert await task

    run(main())


def test_a_cancelled_task_ends_with_its_call_and_discards_the_result() -> None:
    async def main() -> None:
        began, let_go = threading.Event(), threading.Event()
        discarded: list[str] = []

        def call(check: Check) -> str:
            began.set()
            let_go.wait(10)
            return "late"

        task = asyncio.create_task(in_thread(call, discarded.append))
        while not began.is_set():
            await asyncio.sleep(0)
        for _ in range(3):  # one cancellation or several
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert discarded == ["late"]

    run(main())


def test_a_call_that_checks_ends_early() -> None:
    async def main() -> None:
        began = threading.Event()

        def call(check: Check) -> None:
            began.set()
            while True:
                check()

        task = asyncio.create_task(in_thread(call, lambda _: pytest.fail("nothing to discard")))
        while not began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_call_that_fails_after_the_cancellation_is_only_cancelled() -> None:
    async def main() -> None:
        began, let_go = threading.Event(), threading.Event()

        def call(check: Check) -> None:
            began.set()
            let_go.wait(10)
            raise OSError("too late")

        task = asyncio.create_task(in_thread(call, lambda _: pytest.fail("nothing to discard")))
        while not began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_call_in_a_full_pool_never_starts_after_the_cancellation() -> None:
    async def main() -> None:
        let_go = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        other = asyncio.create_task(asyncio.to_thread(let_go.wait, 10))
        await asyncio.sleep(0.01)
        started: list[int] = []
        task = asyncio.create_task(in_thread(lambda check: started.append(1), lambda _: None))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task  # although the pool is still full
        let_go.set()
        await other
        await asyncio.to_thread(int)
        assert started == []

    run(main())
