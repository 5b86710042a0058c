"""Why a reply has not begun, as its client is told."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.conversations.errors import ReadingCancelled, ReadingTimedOut
from sinkstream.conversations.turns import Turn
from sinkstream.host import Host, ReplyOptions
from sinkstream.request.cancellation import check_wanted
from sinkstream.request.options import StreamOptions
from sinkstream.request.tools import check_tools
from sinkstream.server.admission import CALLER
from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.reply_rules import GrammarQueue
from sinkstream.server.running_replies import Reply, Terms, in_time
from sinkstream.server.seats import Seats
from sinkstream.server.service import Service


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


@pytest.mark.parametrize("timeout_s", [5, None])
def test_what_precedes_a_reply_ends_with_its_request(timeout_s: float | None) -> None:
    async def run() -> None:
        async with in_time(time.monotonic() - 9, timeout_s):
            await asyncio.sleep(0)
            if timeout_s is None:
                raise TimeoutError("another")
            await asyncio.Event().wait()

    if timeout_s is None:
        with pytest.raises(TimeoutError, match="another"):
            asyncio.run(run())
        return
    with pytest.raises(ApiError, match="has not begun within 5 s") as refused:
        asyncio.run(run())
    assert (refused.value.status, refused.value.code) == (503, "timeout")


def test_a_grammar_that_is_not_wanted_any_longer_is_not_compiled_to_its_end() -> None:
    begun, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    tools = check_tools([{"type": "function", "function": {"name": "f"}}])

    class SlowHost:
        def compile_grammar(self, wanted: ReplyOptions) -> None:
            assert (wanted.thinking, wanted.tools, wanted.given) == ("low", tools, "a")
            begun.set()
            go_on.wait()
            try:
                check_wanted()
            except ReadingCancelled:
                ended.set()
                raise

    async def run() -> None:
        queue = GrammarQueue()
        options = cast(StreamOptions, {"regex": "a"})
        host = cast(Host, SlowHost())
        task = asyncio.create_task(queue.compile(host, options, {}, tools, "low", "a"))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()  # its client does not wait
        go_on.set()
        queue.close()
        assert ended.is_set()

    asyncio.run(run())


def test_a_key_that_compiles_many_grammars_leaves_another_room() -> None:
    """And a thread: its grammar is compiled at once."""
    go_on, compiled = threading.Event(), threading.Event()

    class SlowHost:
        def compile_grammar(self, wanted: ReplyOptions) -> None:
            if wanted.given == "b":
                compiled.set()
            else:
                go_on.wait(60)

    async def run() -> None:
        queue, host = GrammarQueue({"a": 1.0, "b": 1.0}), cast(Host, SlowHost())
        options = cast(StreamOptions, {"regex": "a"})
        CALLER.set("a")
        tasks = [
            asyncio.create_task(queue.compile(host, options, {}, given="a")) for _ in range(48)
        ]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="this key may hold") as refused:
            await queue.compile(host, options, {}, given="a")
        assert refused.value.status == 429
        CALLER.set("b")
        await asyncio.wait_for(queue.compile(host, options, {}, given="b"), 60)
        assert compiled.is_set()
        go_on.set()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(queue.close)

    asyncio.run(run())
