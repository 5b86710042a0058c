"""`/v1/sessions`: a conversation described, and saved as a file that continues bit for bit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import sinkstream
from sinkstream.conversations.store import Store
from sinkstream.server import sessions_route
from sinkstream.server.admission import MOST_OF_A_KEY, Downloads
from sinkstream.server.errors import ApiError
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    Answered,
    Running,
    running,
)

KEY = {"X-Api-Key": "a"}
GREEDY = {"temperature": 0.0, "max_tokens": 9, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store, api_keys=("a", "b"), sequences=2) as found:
        yield found


def talk(server: Running, turns: int, text: str) -> tuple[list[dict[str, str]], list[str], str]:
    """Return the messages of a conversation, the ids of its turns, and its own id."""
    history: list[dict[str, str]] = []
    nodes = []
    for number in range(turns):
        history.append({"role": "user", "content": f"{text} {number}"})
        answer = say(server, history)
        nodes.append(answer.headers["x-sinkstream-node"])
        history.append(reply_of(answer))
    return history, nodes, answer.headers["x-sinkstream-session"]


def say(server: Running, messages: list[dict[str, str]]) -> Answered:
    answer = server.post(CHAT, {"messages": messages, **GREEDY}, **KEY)
    assert answer.status == 200, answer.body
    return answer


def reply_of(answer: Answered) -> dict[str, str]:
    message = answer.json["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


def get(server: Running, path: str, key: str = "a") -> Answered:
    return server.ask("GET", f"/v1/sessions/{path}", None, {"X-Api-Key": key})


def test_a_conversation_is_described(server: Running) -> None:
    history, nodes, session = talk(server, 3, "one")
    branch = say(server, [*history[:-2], {"role": "user", "content": "other"}])
    for name in (session, nodes[0]):
        found = get(server, name).json
        assert isinstance(found.pop("created_at"), int)
        assert found.pop("tokens") > 60
        assert found == {
            "id": session,
            "object": "session",
            "turns": 4,
            "sinks": 4,
            "heads": [nodes[2], branch.headers["x-sinkstream-node"]],
        }
    assert get(server, "sess_1").error["code"] == "session_not_found"
    assert get(server, session, key="b").status == 404


def test_a_description_reads_no_text(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    _, nodes, session = talk(server, 2, "counted")
    monkeypatch.setattr(Store, "transcript", None)
    assert get(server, session).json["heads"] == [nodes[1]]
    assert get(server, nodes[0]).json["turns"] == 2


def pages(server: Running, path: str, limit: int) -> list[list[str]]:
    """Return the ids on each page of a list."""
    found, after = [], ""
    while True:
        page = server.ask("GET", f"{path}?limit={limit}{after}", None, KEY).json
        found.append([one["id"] for one in page["data"]])
        assert (page["first_id"], page["last_id"]) == (found[-1][0], found[-1][-1])
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def test_lists_come_in_pages(server: Running) -> None:
    sessions = [talk(server, 2, f"listed {number}")[2] for number in range(3)]
    _, nodes, session = talk(server, 3, "long")
    found = pages(server, "/v1/sessions", 2)
    assert all(len(page) == 2 for page in found[:-1])
    assert [one for page in found for one in page][:4] == [session, *sessions[::-1]]
    assert pages(server, f"/v1/sessions/{session}/turns", 2) == [nodes[:2], nodes[2:]]
    assert pages(server, f"/v1/sessions/{nodes[1]}/turns", 2) == [[nodes[1]]]


def test_a_page_ends_before_its_turns_are_too_long(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But it has at least one turn."""
    monkeypatch.setattr(sessions_route, "_PAGE_BYTES", 1)
    _, nodes, session = talk(server, 2, "pages")
    assert pages(server, f"/v1/sessions/{session}/turns", 100) == [[one] for one in nodes]


def test_a_conversation_is_renamed(server: Running) -> None:
    _, _, session = talk(server, 2, "renamed")

    def titles() -> dict[str, str]:
        found = server.ask("GET", "/v1/sessions", None, KEY).json["data"]
        return {one["id"]: one["title"] for one in found}

    assert titles()[session] == "renamed 0"
    answer = server.post(f"/v1/sessions/{session}", {"title": " Waves 🌊 "}, **KEY)
    assert answer.json == {"id": session, "object": "session", "title": "Waves 🌊"}
    assert titles()[session] == "Waves 🌊"
    other = {"X-Api-Key": "b"}
    assert server.post(f"/v1/sessions/{session}", {"title": "no"}, **other).status == 404
    for title in (" ", "x" * 201, 1, None):
        refused = server.post(f"/v1/sessions/{session}", {"title": title}, **KEY)
        assert (refused.status, refused.error["param"]) == (400, "title")
    assert titles()[session] == "Waves 🌊"


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=sess_1"])
def test_a_page_that_is_not_there_is_refused(server: Running, query: str) -> None:
    talk(server, 1, "refused")
    answer = server.ask("GET", f"/v1/sessions?{query}", None, KEY)
    assert (answer.status, answer.error["param"]) == (400, query.partition("=")[0])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder in which the server writes temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


# Turns of others, after which it is somewhere else: in memory, parked to a file, or to be replayed.
@pytest.mark.parametrize("others", [0, 2, 9])
@pytest.mark.parametrize("turns", [1, 6])
def test_a_file_continues_as_the_server_does(
    server: Running, tmp_path: Path, temporary: Path, others: int, turns: int
) -> None:
    history, nodes, session = talk(server, turns, f"two {others} {turns}")
    for number in range(others):
        talk(server, 1, f"other {others} {turns} {number}")
    for name in (session, nodes[-1]):
        answer = get(server, f"{name}/file")
        assert answer.status == 200, answer.body
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.session"'
        (tmp_path / name).write_bytes(answer.body)
    server.wait_until(lambda: not any(temporary.iterdir()), "temporary files are deleted")
    reply = reply_of(say(server, [*history, {"role": "user", "content": "go on"}]))["content"]
    with sinkstream.load(server.model.path, window=60, threads=1) as model:
        for name in (session, nodes[-1]):
            with model.load_session(tmp_path / name) as loaded:
                assert loaded.stats.tokens > loaded.stats.evicted_tokens
                said: Any = loaded.stream("go on", **GREEDY)  # type: ignore[arg-type]
                assert said.result().text.rstrip() == reply.rstrip()


def test_a_file_is_for_its_owner_and_needs_a_sequence(server: Running, temporary: Path) -> None:
    _, nodes, session = talk(server, 1, "three")
    assert get(server, f"{session}/file", key="b").status == 404
    for name in ("resp_1", "sess_1", "%00", "%ff", "x" * 3000):
        answer = get(server, f"{name}/file")
        assert (answer.status, answer.error["code"]) == (404, "session_not_found")
    assert not any(temporary.iterdir())
    assert server.ask("HEAD", f"/v1/sessions/{nodes[0]}/file", None, KEY).status == 200


def test_a_file_that_is_being_sent_has_no_name(server: Running, temporary: Path) -> None:
    """So a server that is killed leaves none, however slowly a client reads."""
    _, nodes, _ = talk(server, 1, "slow")
    head = f"GET /v1/sessions/{nodes[0]}/file HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: a\r\n"
    with server.open(head, buffer_bytes=1024) as connection:
        assert connection.recv(16).startswith(b"HTTP/1.1 200")
        assert not any(temporary.iterdir())


def test_a_file_that_cannot_be_written_is_no_bug(
    server: Running, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, nodes, _ = talk(server, 1, "full")
    temporary.rmdir()
    answer = get(server, f"{nodes[0]}/file")
    assert (answer.status, answer.error["code"]) == (503, "store")
    assert f"store: {temporary} must be a writable folder, but is not" in caplog.text
    assert str(temporary) not in answer.error["message"]


def test_what_a_killed_server_has_left_is_deleted_with_the_next_file(
    server: Running, temporary: Path
) -> None:
    left = temporary / f".{sessions_route._DOWNLOAD}.sinkstream-abandon1.part"
    left.write_bytes(b"a part")
    _, nodes, _ = talk(server, 1, "killed")
    assert get(server, f"{nodes[0]}/file").status == 200
    assert not left.exists()


def test_a_key_cannot_take_all_downloads() -> None:
    downloads = Downloads()
    rule = "session files can be sent at a time"
    with ExitStack() as others:
        with ExitStack() as own:
            for _ in range(MOST_OF_A_KEY):
                own.enter_context(downloads.counted("a"))
            with pytest.raises(ApiError, match=rule) as caught:
                own.enter_context(downloads.counted("a"))
            assert caught.value.status == 429
            for tenant in "bcd":
                for _ in range(MOST_OF_A_KEY):
                    others.enter_context(downloads.counted(tenant))
            with pytest.raises(ApiError, match=rule):
                others.enter_context(downloads.counted("e"))
        others.enter_context(downloads.counted("e"))


def test_who_leaves_does_not_wait_for_a_seat_any_longer(server: Running) -> None:
    _, nodes, _ = talk(server, 1, "left")
    body = json.dumps(ENDLESS).encode()
    path = f"/v1/sessions/{nodes[0]}/file"
    with ExitStack() as busy:
        for key in ("a", "b"):
            head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            busy.enter_context(server.open(head_of("POST", COMPLETIONS, key) + head, body))
        server.wait_until(lambda: server.model.stats()["running"] == 2, "no seat is free")
        with server.open(head_of("GET", path, "a")):
            server.wait_until(lambda: waiting(server) == 1, "it waits")
        server.wait_until(lambda: waiting(server) == 0, "it does not wait any longer")


def head_of(method: str, path: str, key: str) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\n"


def waiting(server: Running) -> int:
    text = server.ask("GET", "/metrics", None, KEY).body.decode()
    return int(text.split("\nsinkstream_waiting_replies ")[1].split("\n")[0])
