"""Conversations over HTTP: a resent history is continued, in one server and after a restart."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import ReadingCancelled, StoreError
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    HELLO,
    Answered,
    Running,
    events_of,
    running,
)

OPTIONS: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
SESSIONS = "/v1/sessions"


@pytest.fixture(scope="module")
def keeping(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Give a server that keeps conversations, with the keys "a" and "b" and 3 seats."""
    store = str(tmp_path_factory.mktemp("store"))
    keys = ("a", "b")
    with running(tiny_folder("llama"), sequences=3, store=store, api_keys=keys) as found:
        yield found


@pytest.fixture(scope="module")
def alone(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    """Give the same model, outside of a server."""
    with sinkstream.load(tiny_folder("llama"), window=60, threads=1) as found:
        yield found


def say(
    server: Running, history: list[Any], text: str, key: str = "a", seed: int = 0, **more: Any
) -> Answered:
    """Send a history with one more message; note the reply in the history."""
    headers = {"X-Api-Key": key, **more.pop("headers", {})}
    history.append({"role": "user", "content": text})
    answer = server.post(CHAT, {"messages": history, "seed": seed, **OPTIONS, **more}, **headers)
    assert answer.status == 200, answer.body
    history.append({"role": "assistant", "content": text_of(answer)})
    return answer


def text_of(answer: Answered) -> str:
    text: str = answer.json["choices"][0]["message"]["content"]
    return text


def read(answer: Answered) -> int:
    """Return how many tokens were read for a request."""
    usage = answer.json["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])


def test_a_resent_history_reads_only_what_is_new(keeping: Running, alone: sinkstream.Model) -> None:
    """60 turns at a window of 60 and 4 sinks; every reply equals a session's, bit for bit."""
    history: list[Any] = []
    reads = []
    with alone.session() as session:
        for turn in range(60):
            asked = f"say {turn}"
            answer = say(keeping, history, asked, seed=turn, logprobs=True)
            result = session.stream(asked, seed=turn, logprobs=0, **OPTIONS).result()
            assert text_of(answer) == result.text
            content = answer.json["choices"][0]["logprobs"]["content"]
            assert [entry["logprob"] for entry in content] == result.logprobs
            assert answer.json["usage"]["prompt_tokens"] + 8 == session.stats.tokens + 1
            assert answer.headers["x-sinkstream-state"] == ("resident" if turn else "new")
            reads.append(read(answer))
        assert session.stats.tokens > 10 * 64
    # The first message has the opening, and later ones the end of the reply before.
    assert max(reads[1:]) <= reads[0] + 10
    sessions = keeping.ask("GET", SESSIONS, None, {"X-Api-Key": "a"}).json["data"]
    assert answer.headers["x-sinkstream-session"] in [one["id"] for one in sessions]


def test_a_stream_is_kept_like_a_whole_reply(keeping: Running) -> None:
    history: list[Any] = []
    say(keeping, history, "the boat")
    body = {"messages": [*history, {"role": "user", "content": "on"}], "stream": True, "seed": 1}
    options = {**OPTIONS, "stream_options": {"include_usage": True}}
    answer = keeping.post(CHAT, {**body, **options}, **{"X-Api-Key": "a"})
    assert answer.headers["x-sinkstream-state"] == "resident"
    events = events_of(answer.body)
    usage = events[-1]["usage"]
    assert usage["sinkstream"]["state"] == "resident"
    assert usage["sinkstream"]["session"] == answer.headers["x-sinkstream-session"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in events[:-1])
    history += [body["messages"][-1], {"role": "assistant", "content": text}]
    assert say(keeping, history, "and on").headers["x-sinkstream-state"] == "resident"


def test_a_regenerated_reply_branches(keeping: Running) -> None:
    history: list[Any] = []
    say(keeping, history, "the house")
    first = text_of(say(keeping, list(history), "more", seed=3))
    again = say(keeping, list(history), "more", seed=3)
    assert again.headers["x-sinkstream-state"] in ("undone", "loaded", "replayed")
    assert text_of(again) == first


def test_older_turns_are_asked_again_far_past_the_window(keeping: Running) -> None:
    history: list[Any] = []
    replies = [
        text_of(say(keeping, history, f"message {number}", seed=number)) for number in range(12)
    ]
    for at in (11, 8, 3):
        again = say(keeping, history[: 2 * at], f"message {at}", seed=at)
        assert again.headers["x-sinkstream-state"] in ("loaded", "replayed")
        assert text_of(again) == replies[at]
    assert again.json["usage"]["sinkstream"]["total_evicted_tokens"] > 0


@pytest.mark.parametrize(
    "other", [{"key": "b"}, {"cache_salt": "pepper"}], ids=["another key", "another salt"]
)
def test_nothing_is_shared_with_another_tenant_or_salt(
    keeping: Running, other: dict[str, Any]
) -> None:
    history: list[Any] = []
    say(keeping, history, "a secret")
    assert say(keeping, list(history), "go on", **other).headers["x-sinkstream-state"] == "new"
    assert say(keeping, history, "go on").headers["x-sinkstream-state"] != "new"


@pytest.mark.parametrize("name", ["X-Session-Id", "X-Conversation-Id", "X-OpenWebUI-Chat-Id"])
def test_a_session_header_chooses_among_equal_conversations(keeping: Running, name: str) -> None:
    one, other = [], []  # type: ignore[var-annotated]
    mine = say(keeping, one, f"equal {name}", headers={name: "one"})
    theirs = say(keeping, other, f"equal {name}", headers={name: "other"})
    assert one == other
    ours, others = (answer.headers["x-sinkstream-session"] for answer in (mine, theirs))
    assert ours != others
    for key, expected in (("one", ours), ("other", others), ("one", ours)):
        found = say(keeping, list(one), "go on", headers={name: key})
        assert found.headers["x-sinkstream-session"] == expected


@pytest.mark.parametrize(
    "more", [{"store": False}, {"headers": {"X-Sinkstream-Ephemeral": "1"}}], ids=["field", "head"]
)
def test_what_is_not_to_be_stored_is_only_in_memory(keeping: Running, more: dict[str, Any]) -> None:
    history: list[Any] = []
    answer = say(keeping, history, f"not stored {sorted(more)}", **more)
    name = answer.headers["x-sinkstream-session"]
    again = say(keeping, history, "go on", **more)
    assert again.headers["x-sinkstream-state"] == "resident"
    sessions = keeping.ask("GET", SESSIONS, None, {"X-Api-Key": "a"}).json["data"]
    assert name not in [one["id"] for one in sessions]


def test_sessions_are_listed_and_deleted_by_their_owner(keeping: Running) -> None:
    history: list[Any] = []
    name = say(keeping, history, "delete me").headers["x-sinkstream-session"]
    own, other = {"X-Api-Key": "a"}, {"X-Api-Key": "b"}
    assert name not in str(keeping.ask("GET", SESSIONS, None, own).json)  # like a title for a chat
    say(keeping, history, "or not")
    assert name in str(keeping.ask("GET", SESSIONS, None, own).json)
    assert name not in str(keeping.ask("GET", SESSIONS, None, other).json)
    refused = keeping.ask("DELETE", f"{SESSIONS}/{name}", None, other)
    assert (refused.status, refused.error["code"]) == (404, "session_not_found")
    gone = keeping.ask("DELETE", f"{SESSIONS}/{name}", None, own)
    assert gone.json == {"id": name, "object": "session.deleted", "deleted": True}
    assert keeping.ask("DELETE", f"{SESSIONS}/{name}", None, own).status == 404
    assert say(keeping, history, "go on").headers["x-sinkstream-state"] == "new"


def test_requests_may_have_more_replies_than_there_are_seats(
    keeping: Running, alone: sinkstream.Model
) -> None:
    key = {"X-Api-Key": "a"}
    for stream in (False, True):
        body = {"prompt": [[5, i] for i in range(4, 11)], "seed": 1, **OPTIONS, "stream": stream}
        answer = keeping.post(COMPLETIONS, body, **key)
        texts = [""] * 7
        for part in events_of(answer.body) if stream else [answer.json]:
            for choice in part["choices"]:
                texts[choice["index"]] += choice["text"]
        expected = [alone.generate([5, i], seed=1, **OPTIONS).text for i in range(4, 11)]
        assert texts == expected
    answer = keeping.post(CHAT, {"messages": HELLO, "n": 5, "seed": 1, **OPTIONS}, **key)
    assert len(answer.json["choices"]) == 5
    keeping.wait_until(lambda: seats(keeping) == 0, "all seats are free")


def test_a_completion_takes_the_seat_of_an_idle_conversation(keeping: Running) -> None:
    for number in range(3):
        history: list[Any] = []
        say(keeping, history, f"idle {number} " + "and on " * 40)
    body = {"prompt": [5] * 100, "seed": 1, **OPTIONS, "timeout_s": 20}
    answer = keeping.post(COMPLETIONS, body, **{"X-Api-Key": "a"})
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == OPTIONS["max_tokens"]
    assert say(keeping, history, "go on").headers["x-sinkstream-state"] != "new"


def seats(server: Running) -> float:
    text = server.ask("GET", "/metrics", None, {"X-Api-Key": "a"}).body.decode()
    (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(OPEN + " ")]
    return float(value)


OPEN = "sinkstream_open_replies"


def test_a_store_that_cannot_be_written_is_a_503(
    keeping: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkstream.conversations.conversation_writer import ConversationWriter

    def fail(*_: object) -> None:
        raise StoreError("store: /a/path must be on a disk with free space, but the disk is full.")

    monkeypatch.setattr(ConversationWriter, "begin", fail)
    body = {"messages": HELLO, **OPTIONS, "seed": 1}
    for _ in range(5):  # more than there are seats
        answer = keeping.post(CHAT, body, **{"X-Api-Key": "a"})
        assert (answer.status, answer.error["code"]) == (503, "store")
        assert "/a/path" not in answer.error["message"]
        assert answer.headers["x-should-retry"] == "false"
    monkeypatch.undo()
    assert keeping.post(CHAT, body, **{"X-Api-Key": "a"}).status == 200


def test_a_state_that_would_take_too_long_to_rebuild_is_a_409(
    keeping: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkstream.conversations.conversations import Conversations
    from sinkstream.conversations.errors import StateLost

    def fail(*_: object) -> None:
        raise StateLost("stream: `previous` must name a turn at most 8 tokens after a state.")

    monkeypatch.setattr(Conversations, "begin", fail)
    answer = keeping.post(CHAT, {"messages": HELLO, **OPTIONS}, **{"X-Api-Key": "a"})
    assert (answer.status, answer.error["code"]) == (409, "state_lost")
    assert answer.headers["x-should-retry"] == "false"


def test_a_client_that_leaves_can_go_on_from_what_it_has(keeping: Running) -> None:
    """The reply is cut in the client: it is read as given, from the turn before."""
    history: list[Any] = []
    say(keeping, history, "long story")
    name = say(keeping, history, "go on").headers["x-sinkstream-session"]
    cut = [*history[:-1], {"role": "assistant", "content": history[-1]["content"][:3]}]
    answer = say(keeping, cut, "and then?")
    assert answer.headers["x-sinkstream-session"] == name
    assert answer.headers["x-sinkstream-state"] in ("undone", "loaded", "replayed")


@pytest.mark.parametrize("how", ["a reply", "a file"])
def test_what_is_read_again_when_the_server_ends_says_so(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Not only that it was cancelled."""
    is_reading, is_over = threading.Event(), threading.Event()

    def read(conversations: Conversations, *_: Any) -> Any:
        with conversations._restorer.residency.waiting(is_over.set):
            is_reading.set()
            assert is_over.wait(30)
        raise ReadingCancelled("stream: the request was ended.")

    with ThreadPoolExecutor() as pool:
        with running(tiny_folder("llama"), store=str(tmp_path / "store")) as server:
            session = server.post(CHAT, {"messages": HELLO, "max_tokens": 4})
            assert session.status == 200
            monkeypatch.setattr(Conversations, "begin" if how == "a reply" else "save", read)
            name = session.headers["x-sinkstream-session"]
            if how == "a reply":
                asking = pool.submit(server.post, CHAT, {"messages": HELLO, "max_tokens": 4})
            else:
                asking = pool.submit(server.ask, "GET", f"/v1/sessions/{name}/file")
            assert is_reading.wait(30)
        refused = asking.result(30)
    assert (refused.status, refused.error["code"]) == (503, "draining")


def test_health_says_that_the_store_is_gone(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with running(tiny_folder("llama"), store=str(tmp_path)) as server:
        gc.unfreeze()  # what was made before the server began
        (turns,) = (
            one
            for one in gc.get_objects()
            if isinstance(one, Conversations) and one._store.name.startswith(str(tmp_path))
        )
        assert server.ask("GET", "/health").status == 200
        (tmp_path / "turns.sqlite").rename(tmp_path / "away")
        turns._maintenance.run()
        refused = server.ask("GET", "/health")
        assert (refused.status, refused.error["code"]) == (503, "store")
        assert "was deleted or replaced" in refused.error["message"]
        asked = {"messages": [{"role": "user", "content": "a"}], **OPTIONS}
        refused = server.post(CHAT, asked)
        assert (refused.status, refused.error["code"]) == (503, "store")
        (tmp_path / "away").rename(tmp_path / "turns.sqlite")
        turns._maintenance.run()
        assert server.ask("GET", "/health").status == 200
        assert server.post(CHAT, asked).status == 200
