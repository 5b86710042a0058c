"""Every way in which asyncio abandons a stream; none leaks anything."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import Token
from sinkstream.streams import aio
from tests.python.waiting import is_idle, wait_until_idle

PROMPT = [5, 9, 17]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    folder = tiny_folder("llama")
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=4) as loaded:
        yield loaded


def endless(model: sinkstream.Model) -> sinkstream.Stream:
    return model.stream(PROMPT, temperature=1.0, ignore_eos=True)


def short(model: sinkstream.Model) -> sinkstream.Stream:
    return model.stream(PROMPT, max_tokens=20, ignore_eos=True, temperature=0)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(bounded())


def descriptors() -> int:
    gc.collect()  # loops in circles of earlier tests
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def read(running: sinkstream.Stream) -> None:
    async for _ in running:
        pass


# ---- abandoning a stream -------------------------------------------------------------------------


def test_break_of_an_unnamed_stream_ends_it(model: sinkstream.Model) -> None:
    async def main() -> None:
        async for _ in endless(model):
            break
        wait_until_idle(model)  # the loop has not run in between
        async for event in endless(model).aevents():
            if isinstance(event, Token):
                break
        wait_until_idle(model)

    run(main())


def test_break_of_a_named_stream_lets_it_be_read_on(model: sinkstream.Model) -> None:
    async def main() -> None:
        running = endless(model)
        async for _ in running:
            break
        assert await anext(running)
        assert not is_idle(model)
        del running
        wait_until_idle(model)

    run(main())


def test_leaving_an_async_with_block_ends_a_stream(model: sinkstream.Model) -> None:
    async def main() -> None:
        async with endless(model) as running:
            await anext(running)
        wait_until_idle(model)
        async with aclosing(endless(model)) as running:
            await anext(running)
        wait_until_idle(model)
        assert [text async for text in running] == []
        assert running.finish_reason == "cancelled"

    run(main())


def test_an_exception_in_the_loop_ends_a_stream(model: sinkstream.Model) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async for _ in endless(model):
                1 / 0  # noqa: B018
        wait_until_idle(model)

    run(main())


def test_a_cancelled_task_ends_its_stream_and_leaves_what_was_produced(
    model: sinkstream.Model,
) -> None:
    async def main() -> None:
        readers: list[Callable[[sinkstream.Stream], Coroutine[Any, Any, Any]]] = [
            read,
            sinkstream.Stream.aresult,
        ]
        for reader in readers:
            running = endless(model)
            task = asyncio.create_task(reader(running))
            await asyncio.sleep(0)  # a task that has not started has no stream to end
            while running.stats.generated_tokens == 0:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            wait_until_idle(model)  # although it has a name
            result = await running.aresult()
            assert result.finish_reason == "cancelled"
            assert len(result.token_ids) > 0

    run(main())


def test_a_cancelled_reader_is_freed_without_a_collection(model: sinkstream.Model) -> None:
    async def read(stream: sinkstream.Stream) -> None:
        async for _ in stream:
            pass

    async def main() -> None:
        with model.stream([5, 6], max_tokens=1 << 30, ignore_eos=True) as stream:
            task = asyncio.create_task(read(stream))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task])
        left = weakref.ref(task)
        del task
        assert left() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_timeout_of_asyncio_ends_the_stream_that_is_waited_for(model: sinkstream.Model) -> None:
    async def main() -> None:
        running = endless(model)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await read(running)
        wait_until_idle(model)
        assert (await running.aresult()).finish_reason == "cancelled"

    run(main())


def test_looking_elsewhere_while_text_is_outstanding_ends_nothing(model: sinkstream.Model) -> None:
    async def main() -> None:
        holders = [endless(model) for _ in range(4)]
        waiting = short(model)
        task = asyncio.ensure_future(anext(waiting))
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        for holder in holders:
            holder.close()
        assert await task + "".join([text async for text in waiting]) == waiting.result().text

    run(main())


@pytest.mark.parametrize("end", ["close", "cancel"])
@pytest.mark.parametrize("where", ["another task", "another thread"])
def test_a_stream_that_is_ended_elsewhere_lets_its_task_go(
    model: sinkstream.Model, end: str, where: str
) -> None:
    async def main() -> None:
        holders = [endless(model) for _ in range(4)]
        waiting = endless(model)
        task = asyncio.create_task(read(waiting))
        await asyncio.sleep(0.02)
        if where == "another task":
            getattr(waiting, end)()
        else:
            await asyncio.to_thread(getattr(waiting, end))
        await task
        assert waiting.finish_reason == "cancelled"
        for holder in holders:
            holder.close()

    run(main())


def test_closing_the_model_ends_the_streams_of_tasks(tiny_folder: Callable[[str], Path]) -> None:
    async def main() -> None:
        with sinkstream.load(tiny_folder("llama"), sinks=4, window=60, threads=1) as short_lived:
            tasks = [asyncio.create_task(read(endless(short_lived))) for _ in range(5)]
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)

    run(main())


# ---- closing a loop ------------------------------------------------------------------------------


def leave_waiting(running: sinkstream.Stream) -> asyncio.Task[None]:
    """Close a loop while one of its tasks waits for a stream."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(read(running))
    while not running._one_reader.is_taken:
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    return task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_whose_loop_was_closed_is_read_elsewhere(model: sinkstream.Model) -> None:
    holders = [endless(model) for _ in range(4)]
    expected = short(model)
    threaded, tasked = short(model), short(model)
    tasks = [leave_waiting(threaded), leave_waiting(tasked)]
    for holder in holders:
        holder.close()
    text = "".join(expected)
    assert "".join(threaded) == text
    assert asyncio.run(tasked.aresult()).text == text
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_closed_loop_leaks_nothing(model: sinkstream.Model) -> None:
    gc.collect()
    before = descriptors()
    running = endless(model)
    task = leave_waiting(running)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop = weakref.ref(task.get_loop())
    del task, running
    gc.collect()
    assert loop() is None
    assert descriptors() == before
    wait_until_idle(model)


def test_starts_and_cancels_leak_no_descriptor(model: sinkstream.Model) -> None:
    async def main() -> None:
        await read(short(model))
        before = descriptors()
        for i in range(1000):
            running = endless(model)
            if i % 3 == 0:
                await anext(running)
            running.close() if i % 2 else running.cancel()
        del running
        assert descriptors() == before, "one for the loop, and none for a stream"

    before = descriptors()
    run(main())
    wait_until_idle(model)
    gc.collect()
    assert descriptors() == before


def test_many_loops_in_many_threads_read_at_once(model: sinkstream.Model) -> None:
    before = descriptors()
    expected = short(model).result().text
    replies: list[str] = []

    def read_in_a_loop() -> None:
        async def main() -> None:
            for _ in range(5):
                streams = [short(model) for _ in range(3)]
                results = await asyncio.gather(*(running.aresult() for running in streams))
                replies.extend(result.text for result in results)

        run(main())

    threads = [threading.Thread(target=read_in_a_loop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [expected] * 120
    gc.collect()
    assert descriptors() == before


def test_a_loop_keeps_nothing_of_the_task_that_read_first(model: sinkstream.Model) -> None:
    class Precious:
        pass

    async def main() -> None:
        kept: ContextVar[Precious] = ContextVar("kept")

        async def first() -> weakref.ref[Precious]:
            precious = Precious()
            kept.set(precious)
            await read(short(model))
            return weakref.ref(precious)

        precious = await asyncio.create_task(first())
        await asyncio.sleep(0.01)  # the loop itself drops it one iteration later
        gc.collect()
        assert precious() is None
        assert asyncio.get_running_loop() in aio._bells

    run(main())


def test_a_loop_sleeps_while_nothing_comes(model: sinkstream.Model) -> None:
    async def main() -> None:
        await read(short(model))
        before = time.thread_time()
        await asyncio.sleep(0.5)
        assert time.thread_time() - before < 0.1

    run(main())


def test_no_thread_is_started_for_a_stream(model: sinkstream.Model) -> None:
    def threads() -> set[str]:  # those of earlier tests may end meanwhile
        return set(os.listdir("/proc/self/task"))  # noqa: PTH208

    async def main() -> None:
        before = threads()
        tasks = [asyncio.create_task(read(short(model))) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert threads() <= before
        await asyncio.gather(*tasks)

    run(main())
