"""Work of one request that runs concurrently: it ends together."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.server.reply_response import _all


async def ends_slowly(may_end: asyncio.Event, ended: list[bool]) -> None:
    """Wait for more than a cancellation, as for a call that has begun, and then fail."""
    try:
        await asyncio.Event().wait()
    finally:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        ended.append(True)
        raise ValueError("late")


def test_work_has_ended_even_if_it_is_cancelled_twice() -> None:
    async def run() -> None:
        logged: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: logged.append(about))
        may_end, ended = asyncio.Event(), list[bool]()
        works = [ends_slowly(may_end, ended) for _ in range(2)]
        task = asyncio.create_task(_all(works))
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        was_done = task.done()
        may_end.set()
        assert not was_done
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended == [True, True]
        gc.collect()  # asyncio would log errors that were not retrieved
        assert logged == []

    asyncio.run(run())
