"""`Model.generate_many`: each reply as soon as it is complete, and an error costs one reply."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sinkstream
from sinkstream import CapacityError, InvalidArgument, Result, SessionBusy
from tests.python.waiting import wait_until_idle

OPTIONS: dict[str, Any] = {"temperature": 1.0, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama"), sinks=4, window=60, threads=1, max_sequences=3
    ) as loaded:
        yield loaded


def in_asyncio(replies: sinkstream.Replies) -> list[tuple[int, Result | Exception]]:
    async def read() -> list[tuple[int, Result | Exception]]:
        return [pair async for pair in replies]

    return asyncio.run(read())


@pytest.mark.parametrize("read", [list, in_asyncio])
def test_every_prompt_has_the_reply_that_it_has_alone(
    model: sinkstream.Model, read: Callable[..., list[tuple[int, Result | Exception]]]
) -> None:
    prompts = [[5 + i, 9] for i in range(20)]
    replies = dict(read(model.generate_many(iter(prompts), max_tokens=5, **OPTIONS)))
    assert sorted(replies) == list(range(20))
    for index, prompt in enumerate(prompts):
        reply = replies[index]
        assert isinstance(reply, Result)
        alone = model.generate(prompt, max_tokens=5, **OPTIONS)
        assert (reply.token_ids, reply.text) == (alone.token_ids, alone.text)


@pytest.mark.parametrize("read", [list, in_asyncio])
def test_a_bad_prompt_costs_only_its_own_reply(
    model: sinkstream.Model, read: Callable[..., list[tuple[int, Result | Exception]]]
) -> None:
    prompts = ["the", "", [5, "x"], [10**6], [7], np.array([5, 9]), object(), []]
    replies = dict(read(model.generate_many(prompts, max_tokens=3, ignore_eos=True)))
    assert {index: type(reply) for index, reply in replies.items()} == {
        0: Result, 1: InvalidArgument, 2: TypeError, 3: InvalidArgument,
        4: Result, 5: Result, 6: TypeError, 7: InvalidArgument,
    }  # fmt: skip
    error = replies[1]
    assert isinstance(error, InvalidArgument)
    assert error.prompt_index == 1
    assert "`prompt` must not be empty" in str(error)


@pytest.mark.parametrize("read", [list, in_asyncio])
def test_short_replies_do_not_wait_for_long_ones(
    model: sinkstream.Model, read: Callable[..., list[tuple[int, Result | Exception]]]
) -> None:
    bias = [[5, 9]] + [[5, 9, 17]] * 6
    long = model.generate(bias[0], max_tokens=400, **OPTIONS).token_ids
    short = model.generate(bias[1], max_tokens=400, **OPTIONS).token_ids
    end = next(token for token in short if token not in long)
    got = read(model.generate_many(bias, max_tokens=400, stop_token_ids=[end], **OPTIONS))
    assert got[-1][0] == 0


def test_prompts_are_taken_as_there_is_room(model: sinkstream.Model) -> None:
    taken = []

    def endless() -> Iterator[list[int]]:
        for index in itertools.count():
            taken.append(index)
            yield [5, 9 + index % 50]

    replies = model.generate_many(endless(), max_tokens=4, ignore_eos=True)
    assert taken == []
    for count, _ in enumerate(itertools.islice(replies, 20), 1):
        assert len(taken) - count <= 2 * model.capacity.max_sequences
    replies.close()
    assert list(replies) == []
    wait_until_idle(model)


def test_replies_longer_than_the_reader_may_lag_are_read_at_once(model: sinkstream.Model) -> None:
    replies = dict(model.generate_many([[5]] * 8, max_tokens=2_500, ignore_eos=True))
    assert [len(replies[i].token_ids) for i in range(8)] == [2_500] * 8  # type: ignore[union-attr]


def test_a_given_seed_is_that_of_every_prompt(model: sinkstream.Model) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    same = [reply.token_ids for _, reply in model.generate_many([[5]] * 3, seed=7, **options)]  # type: ignore[union-attr]
    assert same[0] == same[1] == same[2] == model.generate([5], seed=7, **options).token_ids
    drawn = [reply for _, reply in model.generate_many([[5]] * 3, **options)]
    assert len({tuple(reply.token_ids) for reply in drawn}) == 3  # type: ignore[union-attr]
    for reply in drawn:
        assert isinstance(reply, Result)
        again = model.generate([5], seed=reply.seed, **options)
        assert again.token_ids == reply.token_ids


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"temprature": 1}, TypeError, "no option `temprature`.*`temperature`"),
        ({"temperature": 101}, InvalidArgument, "`temperature` must be"),
        ({"max_tokens": -1}, InvalidArgument, "`max_tokens` must be"),
        ({"sinks": 64}, InvalidArgument, "`sinks` must be"),
        ({"top_k": "3"}, TypeError, "`top_k` must be"),
    ],
)
def test_a_wrong_option_is_no_reply(
    model: sinkstream.Model, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        list(model.generate_many(["the", [5]], **options))
    wait_until_idle(model)


@pytest.mark.parametrize(
    "prompts", ["the", b"the", [5, 9], np.array([5]), [{"role": "user", "content": "hi"}], 5, {}]
)
def test_one_prompt_is_refused(model: sinkstream.Model, prompts: Any) -> None:
    with pytest.raises(TypeError, match=r"generate_many: `prompts` must be an iterable of prompts"):
        model.generate_many(prompts)


@pytest.mark.parametrize("nothing", [[], (), iter(()), np.zeros((0, 3), np.int64)])
def test_no_prompts_have_no_replies(model: sinkstream.Model, nothing: Any) -> None:
    assert list(model.generate_many(nothing)) == []


def test_leaving_the_loop_ends_all(model: sinkstream.Model) -> None:
    for _, reply in model.generate_many([[5], *[[6]] * 9], max_tokens=None, timeout_s=0.05):
        assert isinstance(reply, Result)
        break
    wait_until_idle(model)

    async def main() -> None:
        async with model.generate_many([[5]] * 9, max_tokens=None, ignore_eos=True):
            pass

    asyncio.run(main())
    wait_until_idle(model)


def test_a_cancelled_task_ends_all_and_leaves_what_was_generated(model: sinkstream.Model) -> None:
    replies = model.generate_many([[5]] * 20, max_tokens=None, ignore_eos=True)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(replies)

    asyncio.run(main())
    rest = list(replies)
    assert 0 < len(rest) <= 2 * model.capacity.max_sequences
    assert {reply.finish_reason for _, reply in rest} == {"cancelled"}  # type: ignore[union-attr]
    wait_until_idle(model)


def test_other_tasks_run_meanwhile(model: sinkstream.Model) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        async for _ in model.generate_many([[5]] * 6, max_tokens=500, ignore_eos=True):
            pass
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) > 10


def test_one_reader_at_a_time(model: sinkstream.Model) -> None:
    replies = model.generate_many([[5]], max_tokens=None, ignore_eos=True)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            next(replies)
        except BaseException as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not model.stats()["running"]:
        time.sleep(0.001)
    with pytest.raises(SessionBusy, match="only one thread or task"):
        next(replies)
    replies.close()
    reader.join(timeout=10)
    assert [type(error) for error in caught] == [StopIteration]


def test_what_starts_while_another_thread_closes_ends_too(model: sinkstream.Model) -> None:
    def prompts() -> Iterator[list[int]]:
        replies.close()  # as another thread would, after the prompt was taken
        yield [5]

    replies = model.generate_many(prompts(), max_tokens=None, ignore_eos=True)
    with pytest.raises(StopIteration):
        next(replies)
    wait_until_idle(model)


def test_a_dead_engine_is_no_reply(tiny_folder: Callable[[str], Path]) -> None:
    model = sinkstream.load(tiny_folder("llama"), sinks=4, window=60, threads=1)
    replies = model.generate_many([[5], [6]], max_tokens=3)
    model.close()
    with pytest.raises(sinkstream.EngineDead, match="closed"):
        next(replies)


def test_memory_that_idle_sessions_hold_is_an_error_of_each(
    tiny_folder: Callable[[str], Path],
) -> None:
    with (
        sinkstream.load(
            tiny_folder("llama"), sinks=4, window=60, threads=1, max_sequences=1
        ) as model,
        model.session(),
    ):
        replies = list(model.generate_many([[5], [6]], max_tokens=3))
        assert [type(reply) for _, reply in replies] == [CapacityError] * 2


def test_an_error_of_the_callers_iterator_follows_the_replies_before_it(
    model: sinkstream.Model,
) -> None:
    def broken() -> Iterator[list[int]]:
        for _ in range(3):
            yield [5]
        raise OSError("the disk is gone")

    replies = model.generate_many(broken(), max_tokens=2, ignore_eos=True)
    found = [next(replies)[0] for _ in range(3)]
    assert sorted(found) == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(replies)
    with pytest.raises(StopIteration):
        next(replies)
