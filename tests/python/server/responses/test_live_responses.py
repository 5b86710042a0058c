"""What is kept in memory of responses that have ended: each key has its share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sinkstream.server.responses import live_responses
from sinkstream.server.responses.live_responses import LiveResponses
from sinkstream.server.responses.stored_responses import Opening

OPENING = Opening(None, "")


def ended(live: LiveResponses, tenant: str, name: str, size: int = 100) -> None:
    state = SimpleNamespace(id=name, tenant=tenant, size=size)
    found: Any = SimpleNamespace(state=state)
    live.add(found)
    live.forget_later(name)


def test_a_key_with_many_ended_responses_keeps_those_of_others() -> None:
    async def run() -> None:
        live = LiveResponses()
        for number in range(3):
            ended(live, "ada", f"a{number}")
        for number in range(2 * live_responses._KEPT):
            ended(live, "bob", f"b{number}")
        assert all(live.find("ada", f"a{number}") for number in range(3))
        assert live.find("bob", "b0") is None
        assert live.find("bob", f"b{2 * live_responses._KEPT - 1}")
        assert len(live._ended) == live_responses._KEPT

    asyncio.run(run())


def test_ended_responses_have_a_largest_size() -> None:
    async def run() -> None:
        live, half = LiveResponses(), live_responses._KEPT_BYTES // 2
        ended(live, "ada", "a")
        for number in range(3):
            ended(live, "bob", f"b{number}", half)
        assert live.find("ada", "a")
        assert [bool(live.find("bob", f"b{i}")) for i in range(3)] == [False, False, True]
        ended(live, "cleo", "c", 9 * half)
        assert live.find("cleo", "c") is None  # it takes the most itself
        assert live.find("ada", "a")

    asyncio.run(run())


def test_a_key_with_many_unstored_responses_keeps_those_of_others() -> None:
    live = LiveResponses()
    live.note_unstored("ada", "a", OPENING)
    for number in range(live_responses._UNSTORED + 5):
        live.note_unstored("bob", f"b{number}", OPENING)
    assert live.is_unstored("ada", "a")
    assert not live.is_unstored("bob", "b0")
    assert len(live._unstored) == live_responses._UNSTORED
