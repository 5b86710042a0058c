"""What many replies send at the same time leaves in several turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.server.config import ServerConfig
from sinkstream.server.http_limits import CONNECTION
from sinkstream.server.middleware import Middleware
from sinkstream.server.service import Service
from sinkstream.streams.slices import _AT_ONCE

REPLIES = 100


def scope() -> dict[str, Any]:
    connection = SimpleNamespace(is_surplus=False, is_stalled=False)
    return {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"127.0.0.1")],
        "state": {CONNECTION: connection},
    }


async def sends_per_turn() -> list[int]:
    """Return how many replies send a part in each turn of the loop, all at the same time."""
    turn, began, may_send, sent = 0, 0, asyncio.Event(), []

    async def app(_: Any, receive: Any, send: Any) -> None:
        nonlocal began
        await send({"type": "http.response.start", "status": 200, "headers": []})
        began += 1
        await may_send.wait()
        await send({"type": "http.response.body", "body": b"x"})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(turn)

    async def receive() -> Any:
        await asyncio.Event().wait()

    service = Service(ServerConfig())
    middleware = Middleware(app, service)
    replies = [asyncio.create_task(middleware(scope(), receive, send)) for _ in range(REPLIES)]
    while began < REPLIES:
        await asyncio.sleep(0)
    may_send.set()
    while len(sent) < REPLIES:
        await asyncio.sleep(0)
        turn += 1
    await asyncio.gather(*replies)
    service.close()
    return [sent.count(turn) for turn in set(sent)]


def test_only_a_few_replies_send_in_a_turn() -> None:
    assert max(asyncio.run(sends_per_turn())) <= _AT_ONCE


async def told_of_a_stall() -> list[dict[str, Any]]:
    """Return what a client gets whose response waits for its turn when the engine stalls."""
    is_waiting, may_send, sent = asyncio.Event(), asyncio.Event(), []

    async def turn() -> None:
        is_waiting.set()
        await may_send.wait()

    async def app(_: Any, receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    service = Service(ServerConfig())
    service.sends.turn = turn  # type: ignore[method-assign]
    answering = asyncio.create_task(Middleware(app, service)(scope(), receive, send))
    await is_waiting.wait()
    for alarm in service.health._alarms:
        alarm.set_result(None)
    (left,) = await until(lambda: service.left)
    await asyncio.wait({answering}, timeout=1)
    may_send.set()
    await asyncio.wait({answering, left})
    service.close()
    return sent


async def until(find: Callable[[], Any]) -> Any:
    while not (found := find()):
        await asyncio.sleep(0)
    return list(found)


def test_a_client_whose_response_waits_for_its_turn_is_told_of_a_stall() -> None:
    head, body = asyncio.run(told_of_a_stall())
    assert head["status"] == 503
    assert b'"stalled"' in body["body"]
