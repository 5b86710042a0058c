"""Work that is due all at once is spread over turns of the event loop, in its order."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from sinkstream.streams import slices
from sinkstream.streams.slices import Slices


async def turns_of(slices: Slices, tasks: int) -> list[int]:
    """Start tasks at the same time; return the turn of the loop in which each went on."""
    turn = 0
    went_on: list[int] = []

    async def work() -> None:
        await slices.turn()
        went_on.append(turn)

    working = [asyncio.create_task(work()) for _ in range(tasks)]
    while len(went_on) < sum(not task.cancelled() for task in working):
        await asyncio.sleep(0)
        turn += 1
    await asyncio.gather(*working)
    return went_on


def test_few_tasks_go_on_at_once() -> None:
    assert asyncio.run(turns_of(Slices(4), 4)) == [0] * 4


def test_many_tasks_go_on_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_TURN_S", math.inf)
    went_on = asyncio.run(turns_of(Slices(4), 1000))
    assert went_on == sorted(went_on)
    assert max(went_on.count(turn) for turn in set(went_on)) == 4
    assert went_on[-1] <= 1000 / 4 + 2  # no turn is left out


def test_who_comes_first_goes_first() -> None:
    async def run() -> list[int]:
        slices, order = Slices(2), []

        async def work(number: int, comes_after: int) -> None:
            for _ in range(comes_after):
                await asyncio.sleep(0)
            await slices.turn()
            order.append(number)

        # The last ten come while the first ten wait, in rounds that have room for two.
        await asyncio.gather(*(work(i, i // 10) for i in range(20)))
        return order

    assert asyncio.run(run()) == list(range(20))


def test_a_task_that_is_cancelled_takes_no_place() -> None:
    async def run() -> list[int]:
        slices, done = Slices(1), []

        async def work(number: int) -> None:
            await slices.turn()
            done.append(number)

        tasks = [asyncio.create_task(work(i)) for i in range(6)]
        await asyncio.sleep(0)
        for task in tasks[1:5]:
            task.cancel()
        await asyncio.wait(tasks)
        return done

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [0, 5]


def test_a_quiet_loop_is_left_alone() -> None:
    """After the last task, nothing is scheduled any more: an idle process does not spin."""

    async def run() -> int:
        slices, loop = Slices(1), asyncio.get_running_loop()
        await asyncio.gather(*(slices.turn() for _ in range(5)))
        for _ in range(5):
            await asyncio.sleep(0)
        scheduled: list[object] = []
        call_soon = loop.call_soon

        def noted(*args: Any, **options: Any) -> asyncio.Handle:
            scheduled.append(args)
            return call_soon(*args, **options)

        loop.call_soon = noted  # type: ignore[method-assign,assignment]
        await asyncio.sleep(0.01)
        return len(scheduled)

    assert asyncio.run(run()) <= 1  # the sleep's own


def test_after_a_turn_that_takes_long_fewer_tasks_go_on() -> None:
    async def run() -> list[int]:
        slices, turn, went_on = Slices(4), 0, []

        async def work() -> None:
            await slices.turn()
            went_on.append(turn)
            time.sleep(0.003)  # two of them are too long for a turn

        working = [asyncio.create_task(work()) for _ in range(20)]
        while len(went_on) < 20:
            await asyncio.sleep(0)
            turn += 1
        await asyncio.gather(*working)
        return [went_on.count(turn) for turn in sorted(set(went_on))]

    counts = asyncio.run(run())
    assert counts[:3] == [4, 2, 1]
    assert max(counts[1:]) == 2


def test_waiting_futures_are_set_a_few_in_each_turn_unless_they_are_cancelled() -> None:
    async def run() -> list[bool]:
        slices, loop = Slices(1), asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(4)]
        for future in futures:
            slices.add(future)
        slices.add(futures[0])  # it is done
        futures[1].cancel()
        await asyncio.sleep(0)
        return [future.done() for future in futures]

    assert asyncio.run(run()) == [True, True, True, False]
