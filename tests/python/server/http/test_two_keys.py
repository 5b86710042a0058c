"""What a key gets of a server while another key takes all that it can."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.responses.live_responses import _KEPT, _UNSTORED, LiveResponses
from sinkstream.server.service import Service
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Running,
    running,
)

A, B = ({"Authorization": f"Bearer {name}"} for name in ("a", "b"))
MAX_BODY = 4096


@pytest.fixture(scope="module")
def shared(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server with the keys "a" and "b"."""
    with running(
        tiny_folder("llama"),
        api_keys=("a", "b"),
        max_queue=12,
        max_body_bytes=MAX_BODY,
        public_metrics=True,
    ) as found:
        yield found


def begin(server: Running, body: object, *, left_out: int = 0) -> socket.socket:
    """Send a request of the key "a", without the last bytes."""
    data = json.dumps(body).encode()
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    return server.open(head, data[: len(data) - left_out])


def test_a_key_begins_at_once_while_another_keeps_all_seats_that_it_can(shared: Running) -> None:
    seats = shared.model.capacity.max_sequences
    with ExitStack() as flood:
        for _ in range(seats + 3):
            flood.enter_context(begin(shared, ENDLESS))
        shared.wait_until(
            lambda: shared.metric('sinkstream_waiting{reason="share"}') == 4, "the flood waits"
        )
        assert shared.model.stats()["running"] == seats - 1
        answer = shared.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 2}, B)
        assert answer.status == 200
    shared.wait_until(lambda: shared.model.stats()["running"] == 0, "they end")


def test_background_responses_of_a_key_leave_room_for_those_of_another(shared: Running) -> None:
    body = {"input": "a", "background": True, "max_output_tokens": 60000, "ignore_eos": True}
    names, status = [], 200
    while status == 200:
        answer = shared.ask("POST", "/v1/responses", body, A)
        status = answer.status
        names += [answer.json["id"]] if status == 200 else []
    limit = shared.model.capacity.max_sequences + 12
    assert len(names) == limit - limit // 4
    assert "this key may hold" in answer.error["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    mine = shared.ask("POST", "/v1/responses", {**body, "max_output_tokens": 2}, B)
    assert mine.status == 200
    for name in names:
        assert shared.ask("POST", f"/v1/responses/{name}/cancel", {}, A).status == 200
    shared.wait_until(lambda: shared.model.stats()["running"] == 0, "they end")


def test_unfinished_uploads_of_a_key_leave_room_for_one_of_another(shared: Running) -> None:
    body = {"prompt": "a" * (MAX_BODY - 100), "max_tokens": 1}
    with ExitStack() as uploads:
        for _ in range(3):
            uploads.enter_context(begin(shared, body, left_out=1))
        shared.wait_until(
            lambda: shared.metric("sinkstream_request_body_bytes") > 3 * (MAX_BODY - 200), "held"
        )
        refused = shared.ask("POST", COMPLETIONS, body, A)
        assert (refused.status, refused.error["code"]) == (429, "capacity")
        assert shared.ask("POST", COMPLETIONS, body, B).status == 200


BUDGETS = ("bodies", "messages", "waiting_requests", "whole_replies")


@pytest.mark.parametrize("name", BUDGETS)
def test_a_key_that_fills_a_budget_leaves_another_room_for_the_largest(name: str) -> None:
    service = Service(ServerConfig(api_keys=("a", "b")))
    budget = getattr(service, name)
    largest = budget._shares.limit // 4
    first, second = service.weights
    for _ in range(3):
        budget.take(largest, first)
    with pytest.raises(ApiError, match="this key may hold"):
        budget.take(largest, first)
    budget.take(largest, second)
    service.close()


def test_a_key_that_opens_sockets_leaves_another_some() -> None:
    service = Service(ServerConfig(api_keys=("a", "b")))
    first, second = service.weights
    while service.open_sockets.has_room(first):
        service.open_sockets.take(first)
    assert service.open_sockets.held_by(first) == 750
    assert service.open_sockets.has_room(second, 250)
    service.close()


def test_responses_of_a_key_are_not_forgotten_for_those_of_another() -> None:
    live = LiveResponses()
    live.note_unstored("b", "resp_b", None)  # type: ignore[arg-type]
    for number in range(_UNSTORED + 5):
        live.note_unstored("a", f"resp_{number}", None)  # type: ignore[arg-type]
    assert live.is_unstored("b", "resp_b")
    assert not live.is_unstored("a", "resp_0")
    assert live.is_unstored("a", "resp_6")

    async def end_all() -> None:
        for tenant, name in [("b", "x"), *(("a", f"{i}") for i in range(_KEPT + 5))]:
            live.add(SimpleNamespace(state=SimpleNamespace(id=name, tenant=tenant)))  # type: ignore[arg-type]
            live.forget_later(name)
        assert live.find("b", "x")
        assert not live.find("a", "0")
        assert live.find("a", "6")

    asyncio.run(end_all())
