"""Two servers on one store: a conversation moves between them, and a late one is told so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from websockets.sync.client import connect

from tests.python.server.http.running_server import (
    CHAT,
    HELLO,
    Answered,
    Running,
    events_of,
    running,
    unchunked,
)

OPTIONS: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0, "seed": 3}
ENDLESS: dict[str, Any] = {**OPTIONS, "max_tokens": 1 << 40, "stream": True}


@pytest.fixture(scope="module")
def replicas(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Running]]:
    store = str(tmp_path_factory.mktemp("store"))
    folder = tiny_folder("llama")
    with (
        running(folder, store=store, replica="one") as one,
        running(folder, store=store, replica="two") as two,
    ):
        yield one, two


def say(server: Running, history: list[Any], text: str) -> Answered:
    history.append({"role": "user", "content": text})
    answer = server.post(CHAT, {"messages": history, **OPTIONS})
    assert answer.status == 200, answer.body
    reply = answer.json["choices"][0]["message"]["content"]
    history.append({"role": "assistant", "content": reply})
    return answer


def test_a_conversation_goes_on_wherever_its_request_arrives(
    replicas: tuple[Running, Running],
) -> None:
    history: list[Any] = []
    answers = [say(replicas[i % 2], history, f"Message {i}") for i in range(4)]
    assert len({answer.headers["x-sinkstream-session"] for answer in answers}) == 1
    counts = [answer.json["usage"]["prompt_tokens"] for answer in answers]
    assert counts == sorted(counts)
    assert all(
        answer.headers["x-sinkstream-state"] in ("loaded", "replayed") for answer in answers[1:]
    )


def test_a_stream_whose_conversation_has_moved_ends_with_an_error(
    replicas: tuple[Running, Running],
) -> None:
    one, two = replicas
    history: list[Any] = []
    say(one, history, "Hello")
    with one.begin(CHAT, {"messages": [*history, *HELLO], **ENDLESS}) as connection:
        first = connection.recv(1 << 12)
        assert b"200 OK" in first
        say(two, history, "Elsewhere")
        rest = first
        while part := connection.recv(1 << 16):
            rest += part
    body, is_complete = unchunked(rest)
    assert not is_complete  # a polite end would look like a whole reply
    error = json.loads(body.decode().rstrip().rpartition("data: ")[2])["error"]
    assert (error["type"], error["code"]) == ("conflict_error", "session_moved")
    assert "moved to another replica" in error["message"]
    assert "Send the request again." in error["message"]
    say(one, history, "Back again")  # it takes it back


def test_a_request_that_was_not_answered_yet_gets_a_status(
    replicas: tuple[Running, Running],
) -> None:
    one, two = replicas
    history: list[Any] = []
    say(one, history, "Hello")
    whole = {**ENDLESS, "stream": False, "max_tokens": 60_000}
    with one.begin(CHAT, {"messages": [*history, *HELLO], **whole}) as connection:
        one.wait_until(lambda: one.metric("sinkstream_open_replies") > 0, "a reply")
        say(two, history, "Elsewhere")
        answer = b""
        while b'"error"' not in answer:
            answer += connection.recv(1 << 16)
    assert b" 409 " in answer.splitlines()[0]
    assert b"x-should-retry: true" in answer.lower()
    assert b'"session_moved"' in answer


def test_an_id_is_continued_and_read_on_another_replica(
    replicas: tuple[Running, Running],
) -> None:
    clients = [
        OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") for server in replicas
    ]
    first = clients[0].responses.create(model="tiny", input="Hello", max_output_tokens=20)
    second = clients[1].responses.create(
        model="tiny", input="More", max_output_tokens=20, previous_response_id=first.id
    )
    assert clients[0].responses.retrieve(second.id).output_text == second.output_text
    clients[1].responses.delete(first.id)
    answer = replicas[0].ask("GET", f"/v1/responses/{second.id}")
    assert answer.status == 404


def test_a_background_response_is_known_on_another_replica(
    replicas: tuple[Running, Running],
) -> None:
    one, two = replicas
    path = "/v1/responses"
    body = {"input": "the", "ignore_eos": True, "max_output_tokens": 60_000, "background": True}
    names = [one.post(path, body).json["id"] for _ in range(5)]
    one.wait_until(lambda: one.model.stats()["running"] == 4, "four are running")
    statuses = [two.ask("GET", f"{path}/{name}").json["status"] for name in names]
    assert statuses == ["in_progress"] * 4 + ["queued"]
    for name in (names[0], names[-1]):
        (item,) = two.ask("GET", f"{path}/{name}/input_items").json["data"]
        assert item["content"][0]["text"] == "the"
        for method, rest in (("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
            refused = two.ask(method, f"{path}/{name}{rest}", {} if method == "POST" else None)
            assert (refused.status, refused.error["code"]) == (409, "session_busy")
    for name in names[::-1]:
        assert one.post(f"{path}/{name}/cancel", {}).json["status"] == "cancelled"
    assert [two.ask("GET", f"{path}/{name}").json["status"] for name in names] == ["cancelled"] * 5


@pytest.mark.parametrize("over", ["socket", "events"])
def test_a_response_whose_conversation_has_moved_fails(
    replicas: tuple[Running, Running], over: str
) -> None:
    one, two = replicas
    body = {"model": "tiny", "input": "Hello", "max_output_tokens": 8}
    first = one.post("/v1/responses", body).json
    asks = {
        "model": "tiny", "input": "More", "max_output_tokens": 60_000, "stream": True,
        "previous_response_id": first["id"], "ignore_eos": True,
    }  # fmt: skip
    follows = {**body, "input": "Elsewhere", "previous_response_id": first["id"]}
    if over == "socket":
        with connect(f"ws://127.0.0.1:{one.port}/v1/responses") as socket:
            socket.send(json.dumps({"type": "response.create", **asks}))
            while json.loads(socket.recv(60))["type"] != "response.output_text.delta":
                pass
            assert two.post("/v1/responses", follows).status == 200
            while (event := json.loads(socket.recv(60)))["type"] != "response.failed":
                pass
    else:
        with one.begin("/v1/responses", asks) as connection:
            read = b""
            while b"response.output_text.delta" not in read:
                read += connection.recv(1 << 12)
            assert two.post("/v1/responses", follows).status == 200
            while b"response.failed" not in read.rpartition(b"data: ")[2] or read[-4:-2] != b"\n\n":
                part = connection.recv(1 << 16)
                if not part:
                    break
                read += part
        lines = [line for line in read.decode().splitlines() if line.startswith("data: {")]
        event = next(json.loads(line[6:]) for line in lines if '"response.failed"' in line)
    error = event["response"]["error"]
    assert "moved to another replica" in error["message"]
    assert event["response"]["sinkstream"]["code"] == "session_moved"


def test_events_of_a_stream_are_whole_after_a_move(replicas: tuple[Running, Running]) -> None:
    one, two = replicas
    history: list[Any] = []
    say(one, history, "Hello")
    asks = {"messages": [*history, *HELLO], **OPTIONS, "stream": True}
    with_events = two.post(CHAT, asks)
    events = events_of(with_events.body)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
