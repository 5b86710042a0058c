"""Streams in asyncio: the same text, events, results and errors, while other tasks run."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import Finished, Started, Stream, Token

PROMPT = [5, 9, 17, 33]
SEQUENCES = 64


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    folder = tiny_folder("llama")
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=SEQUENCES) as loaded:
        yield loaded


def stream(model: sinkstream.Model, **options: Any) -> Stream:
    given = {"max_tokens": 150, "temperature": 1.0, "seed": 7, "ignore_eos": True, **options}
    return model.stream(PROMPT, **given)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(bounded())


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def test_async_reading_gives_what_sync_reading_gives(model: sinkstream.Model) -> None:
    async def main() -> None:
        for seed in range(5):
            options = {"seed": seed, "temperature": 3.0, "logprobs": 2}
            expected = stream(model, **options)
            tokens = [event for event in expected.events() if isinstance(event, Token)]
            result = expected.result()
            assert "".join(await collect(stream(model, **options))) == result.text
            events = await collect(stream(model, **options).aevents())
            assert [event for event in events if isinstance(event, Token)] == tokens
            assert (type(events[0]), events[-1]) == (Started, Finished("length"))
            again = await stream(model, **options).aresult()
            assert (again.token_ids, again.logprobs) == (result.token_ids, result.logprobs)
            assert (again.text, again.finish_reason) == (result.text, "length")

    run(main())


def test_a_stream_is_an_iterator_and_an_asynchronous_one(model: sinkstream.Model) -> None:
    running = stream(model, max_tokens=0)
    assert isinstance(running, Iterator)
    assert isinstance(running, AsyncIterator)
    assert isinstance(running.aevents(), AsyncIterator)
    assert not inspect.isasyncgen(running.aevents())


def test_async_reading_stays_at_its_end(model: sinkstream.Model) -> None:
    async def main() -> None:
        running = stream(model, max_tokens=3)
        await collect(running)
        assert running.finish_reason == "length"
        assert await collect(running) == []
        assert await collect(running.aevents()) == []
        assert (await running.aresult()).finish_reason == "length"

    run(main())


def check_whole(text: str, result: sinkstream.Result) -> None:
    """Check that what was read equals the result, which keeps only the tail of a long stream."""
    assert text.endswith(result.text)
    assert len(text) == result.dropped_characters + len(result.text)


def test_tasks_and_threads_alternate_on_one_stream_and_get_each_text_once(
    model: sinkstream.Model,
) -> None:
    async def main() -> None:
        # Endless: a read takes all available text, so a slow reader would finish after a few reads.
        running = stream(model, max_tokens=None)
        pieces: list[str] = []
        for _ in range(5):
            pieces.append(await anext(running))
            pieces.append(next(running))
            pieces.append(await asyncio.to_thread(next, running))
            async for event in running.aevents():
                if isinstance(event, Token):
                    pieces.append(event.text)
                    break
            for event in running.events():
                if isinstance(event, Token):
                    pieces.append(event.text)
                    break
        running.cancel()
        pieces.extend(await collect(running))
        check_whole("".join(pieces), await running.aresult())

    run(main())


def test_one_stream_is_read_in_several_loops(model: sinkstream.Model) -> None:
    running = stream(model, max_tokens=None)
    pieces = [asyncio.run(anext(running)) for _ in range(10)]  # type: ignore[arg-type]
    running.cancel()
    check_whole("".join([*pieces, *running]), running.result())


def test_two_hundred_streams_in_a_task_group_are_what_each_is_alone(
    model: sinkstream.Model,
) -> None:
    async def read(seed: int) -> str:
        return "".join(await collect(stream(model, seed=seed, max_tokens=40)))

    async def main() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(seed)) for seed in range(200)]
        return [task.result() for task in tasks]

    together = run(main())
    assert together == [
        stream(model, seed=seed, max_tokens=40).result().text for seed in range(200)
    ]


def test_the_loop_stays_responsive_while_fifty_streams_run(model: sinkstream.Model) -> None:
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        async with asyncio.TaskGroup() as group:
            for seed in range(50):
                group.create_task(collect(stream(model, seed=seed, max_tokens=200)))
        ticking.cancel()

    run(main())
    gaps.sort()
    assert len(gaps) > 10
    assert gaps[len(gaps) // 2] < 0.1  # a single gap may be due to the machine


def test_a_reader_that_never_has_to_wait_gives_others_a_turn(model: sinkstream.Model) -> None:
    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = stream(model, max_tokens=None)
        counting = asyncio.create_task(count())
        for read in range(100):
            while running.stats.consumer_lag == 0:  # simulates a loop body that takes long
                time.sleep(0.001)
            await anext(running)
            assert turns > read
        counting.cancel()
        running.close()

    run(main())


def test_a_second_task_or_thread_is_refused_and_the_first_task_goes_on(
    model: sinkstream.Model,
) -> None:
    async def main() -> None:
        holders = [stream(model, max_tokens=None) for _ in range(SEQUENCES)]
        waiting = stream(model, max_tokens=5)  # there is no free seat: it yields nothing for now
        first = asyncio.create_task(waiting.aresult())
        while not first.done() and not waiting._one_reader.is_taken:
            await asyncio.sleep(0)
        for read in (anext(waiting), anext(waiting.aevents()), waiting.aresult()):
            with pytest.raises(sinkstream.SessionBusy, match="thread or task"):
                await read
        for other in (lambda: next(waiting), waiting.result):
            with pytest.raises(sinkstream.SessionBusy, match="another is reading this stream"):
                other()
            with pytest.raises(sinkstream.SessionBusy, match="another is reading this stream"):
                await asyncio.to_thread(other)
        for holder in holders:
            holder.close()
        assert len((await first).token_ids) == 5

    run(main())


def test_a_task_that_does_not_read_parks_its_stream_and_loses_nothing(
    model: sinkstream.Model,
) -> None:
    async def main() -> None:
        whole = await stream(model, max_tokens=5000).aresult()
        lagging = stream(model, max_tokens=5000)
        first = await anext(lagging)
        while model.stats()["parked"] == 0:
            await asyncio.sleep(0.01)
        assert lagging.stats.generated_tokens < 4500
        pieces = [first, *await collect(lagging)]
        assert "".join(pieces) == whole.text
        assert max(map(len, pieces)) > 1000, "what it had missed was merged"

    run(main())


def test_an_error_of_the_engine_is_raised_in_the_task(tiny_folder: Callable[[str], Path]) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"sinks": 4, "window": 60, "threads": 1, "max_sequences": 1}
        with sinkstream.load(tiny_folder("llama"), **options) as small:
            unread = stream(small, max_tokens=None)
            first, second = stream(small), stream(small)
            events: list[Any] = []

            async def read_events() -> None:
                async for event in second.aevents():
                    events.append(event)

            async with asyncio.timeout(10):
                with pytest.raises(sinkstream.CapacityError, match="not being read"):
                    await anext(first)
                with pytest.raises(sinkstream.CapacityError):
                    await read_events()
            assert events == [Finished("error")]
            assert await collect(first) == [], "an error is raised once by iteration"
            with pytest.raises(sinkstream.CapacityError):
                await first.aresult()
            unread.close()

    run(main())


def test_a_checkpoint_without_a_tokenizer_gives_events_and_refuses_text(
    tiny_folder: Callable[[str], Path],
) -> None:
    async def main() -> None:
        with sinkstream.load(tiny_folder("llama-one-layer"), sinks=4, window=60, threads=1) as mute:
            running = mute.stream(PROMPT, max_tokens=9)
            with pytest.raises(sinkstream.InvalidArgument, match="must have a tokenizer"):
                await anext(running)
            tokens = [e for e in await collect(running.aevents()) if isinstance(e, Token)]
            assert len(tokens) == 9

    run(main())
