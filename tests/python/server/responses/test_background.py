"""Responses that outlive their requests, and how they are ended."""

from __future__ import annotations

import gc
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.promises import Promise, Promises
from sinkstream.server.responses.live_responses import LiveResponses
from tests.python.server.http.running_server import Running, running, unchunked
from tests.python.server.http.test_process import process
from tests.python.server.responses.checking import (
    ASKED,
    ENDLESS,
    KEY,
    RESPONSES,
    checked,
    checked_events,
    create,
    deltas,
    followed,
    sse,
    text_of,
)

LONG = {**ASKED, "max_output_tokens": 400}
TOO_LONG = [{"role": "system", "content": "the sea " * 200}, {"role": "user", "content": "a"}]
"""What a background response is refused for when it begins: half of the window is not enough."""


def get(server: Running, name: str, **headers: str) -> dict[str, Any]:
    answer = server.ask("GET", f"{RESPONSES}/{name}", None, headers or KEY)
    assert answer.status == 200, answer.body
    return checked(answer.json)


def wait_for(server: Running, name: str, *statuses: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := get(server, name))["status"] not in statuses:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def begin(server: Running, **more: Any) -> dict[str, Any]:
    body = {"input": "the sea", **LONG, "background": True, **more}
    answer = server.post(RESPONSES, body, **KEY)
    assert answer.status == 200, answer.body
    return checked(answer.json)


def cancel(server: Running, name: str) -> dict[str, Any]:
    answer = server.post(f"{RESPONSES}/{name}/cancel", {}, **KEY)
    assert answer.status == 200, answer.body
    return checked(answer.json)


def post(server: Running, body: Any) -> Any:
    """Begin a stream with the key, and return its socket."""
    data = json.dumps(body).encode()
    head = f"POST {RESPONSES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return server.open(f"{head}X-Api-Key: a\r\nContent-Length: {len(data)}\r\n", data)


def test_a_background_response_goes_on_without_its_client(server: Running) -> None:
    begun = begin(server)
    assert begun["status"] in ("queued", "in_progress")
    assert (begun["background"], begun["output"], begun["usage"]) == (True, [], None)
    found = wait_for(server, begun["id"], "incomplete")
    whole = create(server, "the sea", **LONG).json
    assert text_of(found) == text_of(whole)
    assert found["usage"]["output_tokens"] == 400
    assert found["created_at"] == begun["created_at"]


def test_a_lost_stream_is_resumed_without_loss(server: Running) -> None:
    with post(server, {"input": "the sea", **LONG, "background": True, "stream": True}) as lost:
        received = b""
        while received.count(b"output_text.delta") < 4:
            received += lost.recv(4096)
    body = received.partition(b"\r\n\r\n")[2]
    text = b"".join(line for line in body.split(b"\r\n") if line.startswith(b"event: "))
    complete = text[: text.rindex(b"\n\n") + 2]
    events = sse(complete + b"data: [DONE]\n\n")
    rest = followed(server, events[0]["response"]["id"], events[-1]["sequence_number"])
    joined = checked_events(events + rest)
    assert [event["type"] for event in joined][:3] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert deltas(joined) == text_of(joined[-1]["response"])
    assert deltas(joined) == text_of(create(server, "the sea", **LONG).json)


def test_many_clients_follow_one_response(server: Running) -> None:
    name = begin(server)["id"]
    first = followed(server, name)
    assert followed(server, name) == first
    assert followed(server, name, 7) == first[8:]


def test_a_cancelled_response_keeps_what_it_has(server: Running, client: OpenAI) -> None:
    begun = begin(server, **ENDLESS)
    name = begun["id"]
    assert _deltas_of(server, name) >= 5
    refused = server.ask("DELETE", f"{RESPONSES}/{name}", None, KEY)
    assert (refused.status, refused.error["code"]) == (409, "session_busy")
    refused = server.post(RESPONSES, {"input": "a", "previous_response_id": name}, **KEY)
    assert (refused.status, refused.error["param"]) == (400, "previous_response_id")
    found = client.responses.cancel(name)
    assert found.status == "cancelled"
    assert client.responses.cancel(name).status == "cancelled"
    kept = get(server, name)
    assert kept["status"] == "cancelled"
    assert text_of(kept) == found.output_text
    assert kept["output"][0]["status"] == "incomplete"
    after = create(server, "go on", previous_response_id=name).json
    assert after["usage"]["input_tokens"] > kept["usage"]["total_tokens"]
    assert followed(server, name)[-1]["type"] == "response.incomplete"
    assert server.model.stats()["running"] == 0


def test_the_input_of_a_running_response_is_listed(server: Running) -> None:
    name = begin(server, **ENDLESS)["id"]
    wait_for(server, name, "in_progress")
    (item,) = server.ask("GET", f"{RESPONSES}/{name}/input_items", None, KEY).json["data"]
    cancel(server, name)
    (kept,) = server.ask("GET", f"{RESPONSES}/{name}/input_items", None, KEY).json["data"]
    assert item == kept


def test_a_response_that_waits_for_a_seat_is_queued_and_can_be_cancelled(server: Running) -> None:
    running_ = [begin(server, **ENDLESS)["id"] for _ in range(4)]
    queued = begin(server)
    assert queued["status"] == "queued"
    assert get(server, queued["id"])["status"] == "queued"
    assert cancel(server, queued["id"])["status"] == "cancelled"
    assert get(server, queued["id"])["output"] == []
    kinds = [event["type"] for event in followed(server, queued["id"])]
    assert kinds == ["response.created", "response.queued", "response.incomplete"]
    items = server.ask("GET", f"{RESPONSES}/{queued['id']}/input_items", None, KEY)
    assert [one["role"] for one in items.json["data"]] == ["user"]
    following = begin(server, **ASKED)["id"]
    for name in running_:
        cancel(server, name)
    wait_for(server, following, "incomplete")


def test_only_a_response_in_progress_or_background_is_cancelled(
    server: Running, client: OpenAI
) -> None:
    done = create(server, "the sea").json["id"]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(done)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")
    with post(server, {"input": "the sea", **ENDLESS, "stream": True}) as stream:
        received = b""
        while b"output_text.delta" not in received:
            received += stream.recv(4096)
        name = received[received.index(b"resp_") :][:37].decode()
        assert get(server, name)["status"] == "in_progress"
        assert cancel(server, name)["status"] == "cancelled"
        while not received.endswith(b"0\r\n\r\n"):
            received += stream.recv(1 << 16)
    body, is_complete = unchunked(received)
    assert is_complete
    assert sse(body)[-1]["response"]["status"] == "cancelled"


def test_a_client_that_leaves_ends_its_response_and_finds_it(server: Running) -> None:
    with post(server, {"input": "the sea", **ENDLESS, "stream": True}) as stream:
        received = b""
        while received.count(b"output_text.delta") < 3:
            received += stream.recv(4096)
    name = received[received.index(b"resp_") :][:37].decode()
    server.wait_until(lambda: server.model.stats()["running"] == 0, "the reply goes on")
    found = wait_for(server, name, "cancelled")
    events = followed(server, name, 3)
    assert deltas(events) == text_of(found)


def test_a_refused_background_response_is_refused_at_once(server: Running) -> None:
    body = {"input": TOO_LONG, **ASKED, "background": True}
    refused = server.post(RESPONSES, body, **KEY)
    assert (refused.status, refused.error["param"]) == (400, "input")


def test_background_responses_are_admitted_like_others(
    tiny_folder: Callable[[str], Path],
) -> None:
    with running(tiny_folder("llama"), sequences=1, max_queue=1) as server:
        names = []
        for _ in range(2):
            answer = server.post(RESPONSES, {"input": "a", **ENDLESS, "background": True})
            names.append(answer.json["id"])
        refused = server.post(RESPONSES, {"input": "a", **ENDLESS, "background": True})
        assert (refused.status, refused.error["code"]) == (429, "capacity")
        assert int(refused.headers["retry-after"]) >= 1
        for name in names:  # found in memory: nothing is stored
            assert server.post(f"{RESPONSES}/{name}/cancel", {}).json["status"] == "cancelled"
        assert server.ask("GET", f"{RESPONSES}/{names[0]}").json["status"] == "cancelled"


@pytest.fixture
def ending(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Callable[[], Any]:
    return lambda: running(tiny_folder("llama"), store=str(tmp_path), api_keys=("a",), drain_s=0.2)


def test_a_drain_ends_background_responses_and_keeps_them(ending: Callable[[], Any]) -> None:
    with ending() as server:
        name = begin(server, **ENDLESS)["id"]
        assert _deltas_of(server, name) >= 5
    with ending() as server:
        found = get(server, name)
        assert found["status"] == "failed"
        assert found["error"]["code"] == "server_error"
        assert found["sinkstream"]["code"] == "draining"
        assert found["usage"]["output_tokens"] >= 5
        again = create(server, "go on", previous_response_id=name).json
        assert again["previous_response_id"] == name


def test_a_killed_server_keeps_ids_and_text(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_folder("llama")
    with process(model, tmp_path) as (server, child):
        name = begin(server, **ENDLESS)["id"]
        # Parts are committed every 256 tokens: some are, long before all of it was received.
        assert _deltas_of(server, name, characters=1 << 17) >= 5
        child.kill()
        child.wait()
    with process(model, tmp_path) as (server, child):
        found = get(server, name)
        assert found["status"] == "failed"
        assert found["error"]["code"] == "server_error"
        assert len(text_of(found)) > 20
        events = followed(server, name)
        assert deltas(events) == text_of(found)
        assert events[-1]["type"] == "response.failed"
        refused = server.ask("GET", f"{RESPONSES}/{name}?stream=true&starting_after=9", None, KEY)
        assert (refused.status, refused.error["param"]) == (400, "starting_after")
        create(server, "go on", previous_response_id=name)


def test_accepted_responses_are_found_after_a_kill(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Those that waited, too: as failed, with what their clients sent, until they are deleted."""
    model = tiny_folder("llama")
    with process(model, tmp_path) as (server, child):
        names = [begin(server, **ENDLESS)["id"] for _ in range(4)]
        waiting = begin(server, input="the waiting", metadata={"a": "b"})["id"]
        names.append(waiting)
        child.kill()
        child.wait()
    with process(model, tmp_path) as (server, child):
        for name in names:
            found = get(server, name)
            assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        assert get(server, waiting)["metadata"] == {"a": "b"}
        (item,) = server.ask("GET", f"{RESPONSES}/{waiting}/input_items", None, KEY).json["data"]
        assert item["content"][0]["text"] == "the waiting"
        events = followed(server, waiting)
        assert [event["type"] for event in events] == [
            "response.created",
            "response.queued",
            "response.failed",
        ]
        refused = server.post(RESPONSES, {"input": "a", "previous_response_id": waiting}, **KEY)
        assert refused.error["code"] == "previous_response_not_found"
        path = f"{RESPONSES}/{waiting}"
        assert server.ask("DELETE", path, None, KEY).json["deleted"] is True
        assert server.ask("GET", path, None, KEY).status == 404


def test_a_cancelled_response_that_has_not_begun_is_found_later(server: Running) -> None:
    """Also when the server has forgotten it."""
    running_ = [begin(server, **ENDLESS)["id"] for _ in range(4)]
    waiting = begin(server)["id"]
    cancel(server, waiting)
    for name in running_:
        cancel(server, name)
    forget(waiting)
    assert get(server, waiting)["status"] == "cancelled"
    other = server.ask("GET", f"{RESPONSES}/{waiting}", None, {"X-Api-Key": "b"})
    assert other.status == 404
    assert server.ask("DELETE", f"{RESPONSES}/{waiting}", None, KEY).json["deleted"] is True
    assert server.ask("GET", f"{RESPONSES}/{waiting}", None, KEY).status == 404


def test_a_refused_background_response_leaves_nothing(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = {"store": str(tmp_path), "sequences": 1, "max_queue": 0, "api_keys": ("a",)}
    with running(tiny_folder("llama"), **settings) as server:
        name = begin(server, **ENDLESS)["id"]
        assert server.post(RESPONSES, {"input": "a", "background": True}, **KEY).status == 429
        cancel(server, name)
        bad = {"input": TOO_LONG, **ASKED, "background": True}
        assert server.post(RESPONSES, bad, **KEY).status == 400
    with sqlite3.connect(tmp_path / "turns.sqlite") as connection:
        assert connection.execute("SELECT id, outcome FROM promises").fetchall() == []


def test_a_response_that_cannot_be_promised_is_not_accepted(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Promises, promise: Promise) -> None:
        raise StoreError("store: the disk is full.")

    monkeypatch.setattr(Promises, "make", fails)
    refused = server.post(RESPONSES, {"input": "a", **ASKED, "background": True}, **KEY)
    assert (refused.status, refused.error["code"]) == (503, "store")
    assert server.model.stats()["running"] == 0


def forget(name: str) -> None:
    """Let all servers of this process forget a response that has ended."""
    gc.unfreeze()  # what was made before the server began
    found = [one for one in gc.get_objects() if isinstance(one, LiveResponses)]
    assert any(one._found.pop(name, None) for one in found)


def _deltas_of(server: Running, name: str, characters: int = 1) -> int:
    """Follow a response in progress until there are 5 deltas and some text; return how many."""
    path = f"{RESPONSES}/{name}?stream=true"
    with server.open(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: a\r\n") as stream:
        received = b""
        while received.count(b"output_text.delta") < 5 or len(received) < characters:
            part = stream.recv(4096)
            assert part, received
            received += part
    return received.count(b"output_text.delta")
