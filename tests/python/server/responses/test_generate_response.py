"""How a response ends, whatever happens while that is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.server.admission import ByteBudget
from sinkstream.server.errors import invalid
from sinkstream.server.pool import Pool
from sinkstream.server.responses import generate_response
from sinkstream.server.responses.live_responses import Live, LiveResponses
from sinkstream.server.responses.response_object import Resources
from sinkstream.server.responses.response_state import ResponseState
from sinkstream.server.running_replies import Terms

NO_TOKENS: Any = None  # no log-probabilities are asked for


class Notes:
    """A store for which the test decides when a note is written."""

    promises = None

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.names: list[str] = []
        self.error = error

    def note(self, name: str, note: str) -> None:
        self.begun.set()
        assert self.may_end.wait(30)
        self.names.append(name)
        if self.error is not None:
            raise self.error


class EndedReply:
    """A reply of no text, which the store has."""

    def __init__(self) -> None:
        facts = SimpleNamespace(prompt_tokens=1)
        self.turn = SimpleNamespace(stream=SimpleNamespace(has_parts=False), facts=facts)
        self.ended = SimpleNamespace(node="resp_1", finish_reason="stop")
        self.queued_s = 0.0

    async def begin(self) -> Any:
        return self.turn

    async def end(self) -> None:
        pass


@asynccontextmanager
async def one_reply(*_: object) -> AsyncIterator[list[EndedReply]]:
    yield [EndedReply()]


async def no_pieces(*_: object, **__: object) -> AsyncIterator[Any]:
    for piece in ():
        yield piece


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_response, "running", one_reply)
    monkeypatch.setattr(generate_response, "pieces", no_pieces)
    monkeypatch.setattr(generate_response, "_usage", lambda *_: (None, {}))


def begun(notes: Notes) -> tuple[Any, Live]:
    service = SimpleNamespace(
        pool=Pool(),
        live=LiveResponses(),
        whole_replies=ByteBudget(100, "all replies"),
        config=SimpleNamespace(flush_s=0.0),
        turns=notes,
    )
    fields = {"id": "resp_1", "store": True, "background": True, "tools": []}
    live = Live(Resources(ResponseState(fields, ""), NO_TOKENS), [])
    generate_response.begin(service, live, lambda: None, Terms(), 1)  # type: ignore[arg-type, return-value]
    return service, live


@pytest.mark.usefixtures("parts")
def test_a_response_ends_although_it_is_cancelled_twice_while_its_note_is_written() -> None:
    async def check() -> None:
        notes = Notes()
        service, live = begun(notes)
        while not notes.begun.is_set():
            await asyncio.sleep(0.001)
        cancels = [asyncio.create_task(live.cancel()) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in cancels)  # they wait until it is kept
        notes.may_end.set()
        await asyncio.gather(*cancels)
        assert notes.names == ["resp_1"]
        assert live.state.status == "completed"
        assert service.live.find("", "resp_1") is None
        service.pool.close()

    asyncio.run(asyncio.wait_for(check(), 10))


@pytest.mark.usefixtures("parts")
def test_a_response_ends_although_its_note_cannot_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        notes = Notes(OSError("no space left"))
        notes.may_end.set()
        service, live = begun(notes)
        task = live.task
        assert task is not None
        await live.ended()
        await asyncio.wait({task})
        assert task.exception() is None
        assert service.live.find("", "resp_1") is None
        service.pool.close()

    asyncio.run(asyncio.wait_for(check(), 10))
    assert "resp_1: its end could not be stored" in caplog.text


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("is_announced", [False, True])
def test_nothing_is_held_of_a_response_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    """Its client was not told its id, and what it repeats of the request may be long."""

    @asynccontextmanager
    async def refused(*_: object) -> AsyncIterator[list[EndedReply]]:
        raise invalid("too long")
        yield []

    async def check() -> None:
        service, live = begun(Notes())
        live.is_announced = is_announced
        await live.ended()
        assert live.failure is not None
        assert (service.live.find("", "resp_1") is live) == is_announced
        service.live.forget("resp_1")
        service.pool.close()

    monkeypatch.setattr(generate_response, "running", refused)
    asyncio.run(asyncio.wait_for(check(), 10))


def test_a_second_cancel_does_not_interrupt_the_end_of_the_first() -> None:
    async def check() -> None:
        may_end, ended = asyncio.Event(), list[bool]()

        async def work() -> None:
            try:
                await asyncio.sleep(30)
            finally:
                await may_end.wait()
                ended.append(True)

        fields = {"id": "resp_1", "store": True, "background": True, "tools": []}
        live = Live(Resources(ResponseState(fields, ""), NO_TOKENS), [])
        live.task = asyncio.create_task(work())
        await asyncio.sleep(0)
        cancels = []
        for _ in range(2):
            cancels.append(asyncio.create_task(live.cancel()))
            await asyncio.sleep(0.01)
        may_end.set()
        await asyncio.gather(*cancels)
        assert ended == [True]

    asyncio.run(asyncio.wait_for(check(), 10))
