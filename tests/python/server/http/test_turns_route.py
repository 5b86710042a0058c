"""`GET /v1/sessions/{id}/turns`, and the counts that a client needs to draw the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.python.server.http.running_server import CHAT, Running, events_of, running

SINKS, WINDOW = 4, 60


@pytest.fixture(scope="module")
def keeping(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Give a server that keeps conversations, with the keys "a" and "b"."""
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store, api_keys=("a", "b")) as found:
        yield found


def turns_of(server: Running, name: str, key: str = "a") -> Any:
    return server.ask("GET", f"/v1/sessions/{name}/turns", None, {"X-Api-Key": key})


# How a reply ends: at its limit, at the end token, at a stop string; and after an edit.
ENDS: list[dict[str, Any]] = [
    {"max_tokens": 30, "ignore_eos": True},
    {"logit_bias": {"2": 100}},
    {"max_tokens": 20, "stop": ["the"], "logit_bias": {"262": 100}},
    {"max_tokens": 40, "ignore_eos": True},
]


def test_the_counts_of_a_reply_are_those_of_its_turn(keeping: Running) -> None:
    history: list[Any] = []
    for number in range(12):
        if number == 8:
            history = history[:4]  # replayed, since the window has moved
        history.append({"role": "user", "content": f"say {number} of the sea"})
        body = {"messages": history, "seed": number, "temperature": 1.0, **ENDS[number % 4]}
        answer = keeping.post(CHAT, body, **{"X-Api-Key": "a"})
        assert answer.status == 200, answer.body
        content = answer.json["choices"][0]["message"]["content"]
        history.append({"role": "assistant", "content": content})
        own = answer.json["usage"]["sinkstream"]
        assert answer.headers["x-sinkstream-node"] == own["node"]
        (turn,) = turns_of(keeping, own["node"]).json["data"]
        assert turn["live_tokens"] == own["live_tokens"]
        assert turn["pinned_tokens"] == own["pinned_tokens"]
        assert turn["total_evicted_tokens"] == own["total_evicted_tokens"], number
        assert turn["finish_reason"] == own["finish_reason"]
        assert own["live_tokens"] <= SINKS + WINDOW
        assert own["evicted_tokens"] <= own["total_evicted_tokens"]
    listed = turns_of(keeping, own["session"]).json
    assert (listed["object"], listed["session"]) == ("list", own["session"])
    assert len(listed["data"]) == 12
    shown = [
        {"role": message["role"], "content": message["content"]}
        for turn in listed["data"][-4:]
        for message in turn["messages"]
    ]
    assert shown == history[-8:]


def test_every_chunk_may_say_what_is_live(keeping: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": [{"role": "user", "content": "the sea"}], "max_tokens": 300, "seed": 1}
    body |= {"stream": True, "stream_options": options, "ignore_eos": True}
    answer = keeping.post(CHAT, body, **{"X-Api-Key": "a"})
    found = [event["usage"] for event in events_of(answer.body) if event.get("usage")]
    assert len(found) >= 2
    for usage in found:
        own = usage["sinkstream"]
        assert own["live_tokens"] <= SINKS + WINDOW
        assert own["live_tokens"] + own["total_evicted_tokens"] == usage["total_tokens"] - 1
    assert found[-1]["sinkstream"]["total_evicted_tokens"] > 200


def test_a_conversation_is_shown_to_its_owner_alone(keeping: Running) -> None:
    body = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 2, "seed": 1}
    answer = keeping.post(CHAT, body, **{"X-Api-Key": "a", "X-Session-Id": "mine"})
    session, node = (answer.headers[f"x-sinkstream-{name}"] for name in ("session", "node"))
    for name in (session, node):
        assert turns_of(keeping, name).json["session_key"] == "mine"
        refused = turns_of(keeping, name, "b")
        assert (refused.status, refused.error["code"]) == (404, "session_not_found")
    listed = keeping.ask("GET", "/v1/sessions", None, {"X-Api-Key": "a"}).json["data"]
    assert {one["id"]: one["title"] for one in listed}[session] == "a secret"
