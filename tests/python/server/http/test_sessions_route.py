"""`/v1/sessions`: a conversation described, and saved as a file that continues bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import sinkstream
from tests.python.server.http.running_server import CHAT, Answered, Running, running

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
