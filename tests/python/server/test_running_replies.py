"""Why a reply has not begun, as its client is told."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.conversations.errors import ReadingCancelled, ReadingTimedOut
from sinkstream.conversations.turns import Turn
from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.running_replies import Reply, Terms
from sinkstream.server.service import Service
from sinkstream.server.shares import Seats


@pytest.mark.parametrize(
    ("error", "is_draining", "code"),
    [
        (ReadingCancelled("no"), True, "draining"),
        (ReadingTimedOut(1), True, "timeout"),
        (ReadingTimedOut(1), False, "timeout"),
    ],
)
def test_a_reply_whose_conversation_is_not_read_to_its_end(
    error: Exception, is_draining: bool, code: str
) -> None:
    async def run() -> None:
        service = Service(ServerConfig())
        service.seats, service.is_draining = Seats(1, {}), is_draining

        def start() -> Turn:
            raise error

        with pytest.raises(ApiError) as refused:
            await Reply(0, start, service, Terms(), {}).begin()
        assert (refused.value.status, refused.value.code) == (503, code)
        assert dict(refused.value.headers)[b"x-should-retry"] == b"true"
        assert not service.seats.must_wait("")
        service.close()

    asyncio.run(run())


def test_a_reply_whose_time_is_over_while_it_waits_for_a_seat() -> None:
    async def run() -> None:
        service = Service(ServerConfig())
        service.seats = Seats(1, {})
        await service.seats.acquire("")
        terms = Terms(arrived_at=time.monotonic() - 9, timeout_s=5)
        reply = Reply(0, lambda: pytest.fail("it begins"), service, terms, {})
        with pytest.raises(ApiError, match="has not begun within 5 s") as refused:
            await reply.begin()
        assert (refused.value.status, refused.value.code) == (503, "timeout")
        await reply.finish()
        await asyncio.wait({*service.left})
        assert service.seats.waiting == 0
        service.close()

    asyncio.run(run())


def test_a_reply_whose_time_is_over_while_it_is_prepared_keeps_its_seat_until_that_ends() -> None:
    async def run() -> None:
        service, may_end = Service(ServerConfig()), threading.Event()
        service.seats = Seats(1, {})

        def start() -> Turn:
            may_end.wait()
            raise ValueError

        reply = Reply(0, start, service, Terms(arrived_at=time.monotonic() - 9, timeout_s=5), {})
        with pytest.raises(ApiError, match="has not begun within 5 s"):
            await reply.begin()
        await reply.finish()  # returns although the call goes on
        assert service.seats.must_wait("")
        (left,) = service.left
        may_end.set()
        await asyncio.wait({left})
        assert not service.seats.must_wait("")
        service.close()

    asyncio.run(run())
