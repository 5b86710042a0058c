"""Servers that share a store: conversations move between them, and requests find their owner."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import (
    CHAT,
    ENDLESS,
    HELLO,
    Answered,
    Running,
    running,
)

SECRET = "a secret of sixteen or more"
PEER = {"x-sinkstream-peer": SECRET}


@pytest.fixture(scope="module")
def pair(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Running]]:
    """Give two servers on one store."""
    store = str(tmp_path_factory.mktemp("store"))
    with shared(tiny_folder, store, "one") as one, shared(tiny_folder, store, "two") as two:
        yield one, two


@contextmanager
def shared(
    tiny_folder: Callable[[str], Path], store: str, name: str, **settings: Any
) -> Iterator[Running]:
    own = {"store": store, "replica": name, "peer_secret": SECRET, **settings}
    with running(tiny_folder("llama"), **own) as found:
        yield found


def respond(server: Running, text: str, **fields: Any) -> Answered:
    body = {"input": text, "max_output_tokens": 5, "seed": 1, "ignore_eos": True, **fields}
    return server.post("/v1/responses", body)


def state_of(answer: Answered) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["sinkstream"]["state"])


def test_a_response_is_continued_by_its_owner(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello")
    before = one.model.stats()["requests"], two.model.stats()["requests"]
    second = respond(two, "again", previous_response_id=first.json["id"])
    assert state_of(second) == "resident"
    assert (one.model.stats()["requests"], two.model.stats()["requests"]) == (
        before[0] + 1,
        before[1],
    )
    assert second.headers["x-request-id"]
    for path in ("", "/input_items"):
        name = f"/v1/responses/{second.json['id']}{path}"
        assert two.ask("GET", name).json == one.ask("GET", name).json
    deleted = two.ask("DELETE", f"/v1/responses/{first.json['id']}")
    assert (deleted.status, deleted.json["deleted"]) == (200, True)
    assert one.ask("GET", f"/v1/responses/{second.json['id']}").status == 404


def test_with_a_session_header_the_conversation_moves(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello", max_output_tokens=30)
    body = {"input": "on", "previous_response_id": first.json["id"], "max_output_tokens": 5}
    moved = two.post("/v1/responses", body, **{"X-Session-Id": "mine"})
    assert state_of(moved) == "loaded"
    again = respond(two, "on", previous_response_id=moved.json["id"])
    assert state_of(again) == "resident"


def test_a_stream_passes_as_it_comes(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello")
    fields = {"previous_response_id": first.json["id"], "stream": True, "max_output_tokens": 40}
    events = respond(two, "count", **fields)
    assert events.headers["content-type"].startswith("text/event-stream")
    kinds = [line for line in events.body.decode().split("\n") if line.startswith("event: ")]
    assert kinds[0] == "event: response.created"
    assert kinds[-1] == "event: response.incomplete"
    assert len(kinds) > 5


def test_who_leaves_is_cancelled_at_the_owner(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello")
    body = {
        "input": "on", "previous_response_id": first.json["id"], "stream": True,
        "max_output_tokens": 60_000, "ignore_eos": True, "seed": 1,
    }  # fmt: skip
    with two.begin("/v1/responses", body) as connection:
        data = b""
        while b"output_text.delta" not in data:
            data += connection.recv(1 << 16)
        assert one.model.stats()["running"] == 1
    one.wait_until(lambda: one.model.stats()["running"] == 0, "cancelled")


def test_a_refusal_of_the_owner_reaches_the_client(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello")
    for server in (one, two):
        answer = respond(server, "on", previous_response_id=first.json["id"], temperature=-1)
        assert (answer.status, answer.error["param"]) == (400, "temperature")
        assert respond(server, "on", previous_response_id="resp_none").status == 400


def test_a_chat_moves_to_the_server_that_is_asked(pair: tuple[Running, Running]) -> None:
    """The owner parks it on request, so that it is loaded; the first server then loses it."""
    one, two = pair
    talk, states, sessions = list(HELLO), [], set()
    for server in (one, one, two, two, one):
        body = {"messages": talk, "max_tokens": 30, "seed": 1, "ignore_eos": True}
        answer = server.post(CHAT, body)
        own = answer.json["usage"]["sinkstream"]
        states.append(own["state"])
        sessions.add(own["session"])
        talk += [answer.json["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    assert states == ["new", "resident", "loaded", "resident", "loaded"]
    assert len(sessions) == 1


def test_without_the_secret_the_paths_do_not_exist(pair: tuple[Running, Running]) -> None:
    one, _ = pair
    first = respond(one, "hello")
    session = first.json["sinkstream"]["session"]
    path = f"/internal/release?session={session}"
    for headers in ({}, {"x-sinkstream-peer": ""}, {"x-sinkstream-peer": SECRET + "!"}):
        assert one.post(path, {}, **headers).status == 404
        assert one.post("/internal/park", {}, **headers).status == 404
    assert one.ask("GET", path, headers=PEER).status == 404
    assert state_of(respond(one, "on", previous_response_id=first.json["id"])) == "resident"
    assert one.post(path, {}, **PEER).json == {"released": True}
    again = respond(one, "on", previous_response_id=first.json["id"])
    assert state_of(again) != "resident"


def test_a_forged_header_neither_helps_nor_harms(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello")
    body = {"input": "on", "previous_response_id": first.json["id"], "max_output_tokens": 5}
    forged = two.post("/v1/responses", body, **{"X-Sinkstream-Peer": "of a client"})
    assert state_of(forged) == "resident"  # passed on, as without it
    head = two.ask("HEAD", f"/v1/responses/{first.json['id']}")
    assert (head.status, head.body) == (200, b"")


def test_parking_gives_up_everything(pair: tuple[Running, Running]) -> None:
    one, two = pair
    first = respond(one, "hello", max_output_tokens=30)
    assert one.post("/internal/park", {}, **PEER).json == {"parked": True}
    assert state_of(respond(two, "on", previous_response_id=first.json["id"])) == "loaded"


def test_a_server_without_a_secret_has_no_such_paths(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama")) as server:
        for headers in ({}, {"x-sinkstream-peer": ""}):
            answer = server.post("/internal/release?session=sess_1", {}, **headers)
            assert (answer.status, answer.error["code"]) == (404, "not_found")


def test_a_conversation_outlives_its_server(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with shared(tiny_folder, str(tmp_path), "two") as two:
        with shared(tiny_folder, str(tmp_path), "one") as one:
            first = respond(one, "hello", max_output_tokens=30)
        second = respond(two, "on", previous_response_id=first.json["id"])
        assert state_of(second) == "loaded"
        assert (
            two.ask("GET", f"/v1/responses/{first.json['id']}").json["output"]
            == first.json["output"]
        )


def test_an_owner_that_does_not_answer_loses_the_conversation(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its address accepts connections and says nothing, or breaks off in the middle."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            shared(tiny_folder, str(tmp_path), "one", address=address) as one,
            shared(tiny_folder, str(tmp_path), "two") as two,
        ):
            first = respond(one, "hello")
            body = {"input": "on", "previous_response_id": first.json["id"]}
            with closing_connections(silent) as requests:
                forged = {"X-Sinkstream-Peer": "of a client"}
                second = two.post("/v1/responses", {**body, "max_output_tokens": 5}, **forged)
            assert state_of(second) in ("loaded", "replayed")
            passed_on = requests[0].lower()
            assert passed_on.startswith(b"post /v1/responses http/1.1")
            # Two would not count as one, and the owner might pass the request on again.
            assert passed_on.count(b"x-sinkstream-peer") == 1
            body = {"messages": HELLO, "max_tokens": 5, "seed": 1}
            own = one.post(CHAT, body).json
            talk = [*HELLO, own["choices"][0]["message"], {"role": "user", "content": "and?"}]
            answer = two.post(CHAT, {**body, "messages": talk})  # nothing accepts any more
            assert answer.status == 200
            facts = [each["usage"]["sinkstream"]["session"] for each in (answer.json, own)]
            assert facts[0] == facts[1]
            moved = one.post(CHAT, {**body, "messages": talk})
            if moved.status == 409:  # it had not noticed yet
                assert moved.error["code"] == "session_moved"
                assert moved.headers["x-should-retry"] == "true"
                moved = one.post(CHAT, {**body, "messages": talk})
            assert moved.json["usage"]["sinkstream"]["session"] == facts[0]


@contextmanager
def closing_connections(listener: socket.socket) -> Iterator[list[bytes]]:
    """Read each request, and close; give what was read."""
    read: list[bytes] = []

    def close_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                read.append(connection.recv(1 << 16))
                connection.close()

    thread = threading.Thread(target=close_all, daemon=True)
    thread.start()
    yield read


def test_a_server_that_shuts_down_parks_before_its_last_reply_ends(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """A server that may not ask it finds the state of an idle conversation in the store."""
    stop, other = threading.Event(), "another secret, so that it may not ask"
    with (
        shared(tiny_folder, str(tmp_path), "two", peer_secret=other) as two,
        shared(tiny_folder, str(tmp_path), "one", drain_s=300.0, stop=stop) as one,
    ):
        first = respond(one, "hello", max_output_tokens=30)
        with one.begin("/v1/completions", ENDLESS) as connection:
            assert b" 200 " in connection.recv(64)
            stop.set()
            one.wait_until(lambda: any(tmp_path.rglob("*.session")), "a snapshot")
            assert one.ask("GET", "/health").status == 503
            second = respond(two, "on", previous_response_id=first.json["id"])
            assert state_of(second) == "loaded"
            assert second.json["sinkstream"]["replayed_tokens"] == 0
