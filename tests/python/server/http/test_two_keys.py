"""What a key gets of a server while another key takes all that it can."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.responses.live_responses import _KEPT, _UNSTORED, LiveResponses
from sinkstream.server.service import Service
from sinkstream.server.texts import Texts
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Answered,
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


def test_long_calls_of_a_key_do_not_delay_another(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    encode = Texts.encode

    def slow(texts: Texts, content: str, **given: bool) -> list[int]:
        if content == "slow":
            begun.release()
            assert go_on.wait(60)
        return encode(texts, content, **given)

    monkeypatch.setattr(Texts, "encode", slow)
    with ThreadPoolExecutor(6) as clients:
        asked = [
            clients.submit(shared.ask, "POST", "/tokenize", {"content": "slow"}, A)
            for _ in range(6)
        ]
        for _ in range(2):
            assert begun.acquire(timeout=60)
        try:
            answer = shared.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 2}, B)
            assert answer.status == 200
        finally:
            go_on.set()
        assert all(one.result().status == 200 for one in asked)


def test_requests_of_a_key_leave_connections_for_another(
    tiny_folder: Callable[[str], Path],
) -> None:
    """Each request takes a connection, however little it sends and however slowly."""
    with (
        running(tiny_folder("llama"), api_keys=("a", "b"), max_connections=8) as server,
        ExitStack() as slow,
    ):
        for _ in range(6):
            slow.enter_context(begin(server, {"prompt": "a"}, left_out=1))
        server.wait_until(lambda: ask_models(server, A).status == 429, "a key has all it may have")
        refused = ask_models(server, A)
        assert (refused.error["code"], refused.headers["retry-after"]) == ("capacity", "1")
        assert ask_models(server, B).status == 200
        assert server.ask("GET", "/health", None, A).status == 200


def ask_models(server: Running, key: dict[str, str]) -> Answered:
    return server.ask("GET", "/v1/models", None, key)


def test_responses_that_a_key_does_not_read_leave_room_for_another(
    tiny_folder: Callable[[str], Path],
) -> None:
    """Whatever route makes them: they are held until they are read."""
    body = json.dumps({"content": "the sea " * 12_000, "with_pieces": True}).encode()
    head = (
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    with (
        running(tiny_folder("llama"), api_keys=("a", "b"), max_body_bytes=1 << 17) as server,
        ExitStack() as unread,
    ):
        for _ in range(3):
            one = unread.enter_context(server.open(head, body, buffer_bytes=1024))
            assert one.recv(12) == b"HTTP/1.1 200"
        refused = server.ask("POST", "/tokenize", body, A)
        assert (refused.status, refused.error["code"]) == (429, "capacity")
        assert "the responses that their clients are reading" in refused.error["message"]
        assert server.ask("POST", "/tokenize", {"content": "a"}, A).status == 200
        mine = server.ask("POST", "/tokenize", body, B)
        assert mine.status == 200
        assert len(mine.body) == int(mine.headers["content-length"]) > 1 << 18
        assert len(mine.json["tokens"]) > 12_000


def own(server: Running, key: dict[str, str]) -> dict[str, float]:
    """Return what a key sees of itself in the metrics."""
    text = server.ask("GET", "/metrics", None, key).body.decode()
    lines = (line.rpartition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in lines if name.startswith("sinkstream_key_")}


def test_a_key_sees_what_it_does_itself_and_the_log_names_it(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sinkstream.server")
    key = hashlib.sha256(b"b").hexdigest()[:8]
    responses = f'sinkstream_key_responses_total{{key="{key}",code="200"}}'
    tokens = f'sinkstream_key_tokens_total{{key="{key}",kind="generated"}}'
    body = {"prompt": "the", "max_tokens": 3, "ignore_eos": True}
    assert shared.ask("POST", COMPLETIONS, body, B).status == 200
    shared.wait_until(lambda: f" key={key} " in caplog.text, "it is noted")
    before = own(shared, B)
    assert shared.ask("POST", COMPLETIONS, body, B).status == 200
    shared.wait_until(lambda: own(shared, B)[tokens] == before[tokens] + 3, "it is counted")
    assert own(shared, B)[responses] > before[responses]
    assert all(key in name for name in before)
    assert not any(key in name for name in own(shared, A))
    assert own(shared, {}) == {}


def test_an_operator_may_see_what_each_key_does(tiny_folder: Callable[[str], Path]) -> None:
    key = hashlib.sha256(b"a").hexdigest()[:8]
    one = f'sinkstream_key_replies{{key="{key}",state="running"}}'
    with running(tiny_folder("llama"), api_keys=("a", "b"), key_metrics=True) as server:
        with begin(server, ENDLESS):
            server.wait_until(lambda: own(server, B)[one] == 1, "it runs")
        server.wait_until(lambda: own(server, B)[one] == 0, "it ends")


BUDGETS = ("bodies", "messages", "unread", "waiting_requests", "whole_replies")


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
            state = SimpleNamespace(id=name, tenant=tenant, size=100)
            live.add(SimpleNamespace(state=state))  # type: ignore[arg-type]
            live.forget_later(name)
        assert live.find("b", "x")
        assert not live.find("a", "0")
        assert live.find("a", "6")

    asyncio.run(end_all())
