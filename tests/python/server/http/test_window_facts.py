"""What a client is told about its window: what stays, what leaves it, and what never fits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    HELLO,
    Answered,
    Running,
    events_of,
    running,
)

CAPACITY = 64
PERSONA = {"role": "system", "content": "A pirate"}
LONG = [PERSONA, {"role": "user", "content": "word " * 30}]
SHORT = {"max_tokens": 4, "ignore_eos": True, "seed": 1}
RESPONSES = "/v1/responses"


@pytest.fixture(scope="module", params=["plain", "kept"])
def server(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    store = "none" if request.param == "plain" else str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), sequences=3, store=store) as found:
        yield found


def own(answer: Answered) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json["usage"]["sinkstream"]
    return found


def logged(server: Running, caplog: pytest.LogCaptureFixture, head: str) -> list[str]:
    """Return the lines of requests, which are written after their responses."""

    def found() -> list[str]:
        return [line for line in caplog.messages if head in line]

    server.wait_until(lambda: bool(found()), "it is logged")
    return found()


def test_the_system_prompt_is_pinned_by_default(server: Running) -> None:
    facts = own(server.post(CHAT, {"messages": [PERSONA, *HELLO], **SHORT}))
    pinned = facts["pinned_tokens"]
    assert 4 < pinned <= CAPACITY // 2
    assert "warning" not in facts
    for body in ({"sinks": "system"}, {"sinks": pinned}):
        again = server.post(CHAT, {"messages": [PERSONA, *HELLO], **SHORT, **body})
        assert own(again)["pinned_tokens"] == pinned
        assert again.headers["x-sinkstream-pinned"] == str(pinned)
    fewer = server.post(CHAT, {"messages": [PERSONA, *HELLO], "sinks": 4, **SHORT})
    assert own(fewer)["pinned_tokens"] == 4
    text = server.post(COMPLETIONS, {"prompt": "the", "sinks": 9, **SHORT})
    assert own(text)["pinned_tokens"] == min(9, text.json["usage"]["prompt_tokens"])


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"sinks": "all"}, "sinks", "`sinks` must be an integer or \"system\", but is 'all'"),
        ({"sinks": CAPACITY}, "sinks", f"`sinks` must be in [0, {CAPACITY - 1}]"),
        ({"sinks": 1 << 70}, "sinks", "must be an integer"),
        ({"on_overflow": "drop"}, "on_overflow", '`on_overflow` must be "evict" or "refuse"'),
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_wrong_values_are_refused(
    server: Running, path: str, body: dict[str, Any], param: str, text: str
) -> None:
    said = {"messages": HELLO} if path == CHAT else {"input": "the sea"}
    error = server.post(path, {**said, **body}).error
    assert (error["param"], error["code"]) == (param, "invalid_argument")
    assert text in error["message"]


def test_a_system_prompt_that_leaves_no_window_is_refused(server: Running) -> None:
    long = {"role": "system", "content": "word " * 30}
    for path, body, param in (
        (CHAT, {"messages": [long, *HELLO]}, "messages"),
        (RESPONSES, {"input": "the sea", "instructions": long["content"]}, "input"),
    ):
        answer = server.post(path, body)
        assert answer.status == 400
        assert answer.error["code"] == "context_length_exceeded"
        assert answer.error["param"] == param
        assert f"at most {CAPACITY // 2} tokens" in answer.error["message"]
        assert "restart the server with a `--window` of at least " in answer.error["message"]
    assert server.post(CHAT, {"messages": [long, *HELLO], "sinks": 4, **SHORT}).status == 200


def test_a_prompt_that_does_not_fit_is_said_to_once(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    counted = 'sinkstream_window_tokens_total{kind="dropped"}'
    before = server.metric(counted)
    with caplog.at_level(logging.INFO, "sinkstream.server"):
        answer = server.post(CHAT, {"messages": LONG, "n": 2, **SHORT})
        (line,) = logged(server, caplog, "POST /chat/completions 200")
    facts = own(answer)
    dropped = facts["dropped_prompt_tokens"]
    assert dropped == answer.json["usage"]["prompt_tokens"] - CAPACITY > 0
    assert facts["warning"] == answer.headers["x-sinkstream-warning"]
    assert f"does not see {dropped} of them, at the beginning." in facts["warning"]
    assert len([line for line in caplog.messages if facts["warning"] in line]) == 1
    evicted = sum([facts["evicted_tokens"]] * 2)
    pinned = facts["pinned_tokens"]
    assert f"evicted={evicted} pinned={pinned} dropped={dropped} finish=length" in line
    assert server.metric(counted) == before + 2 * dropped


def test_a_stream_says_it_in_its_head_and_at_its_end(server: Running) -> None:
    answer = server.post(CHAT, {"messages": LONG, "stream": True, **SHORT})
    last = next(one["sinkstream"] for one in events_of(answer.body) if "sinkstream" in one)
    assert last["warning"] == answer.headers["x-sinkstream-warning"]


def test_a_response_says_it(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    body = {"input": "word " * 30, "max_output_tokens": 4, "ignore_eos": True}
    with caplog.at_level(logging.INFO, "sinkstream.server"):
        answer = server.post(RESPONSES, body)
        (line,) = logged(server, caplog, "POST /responses 200")
    facts = answer.json["sinkstream"]
    assert facts["warning"] == answer.headers["x-sinkstream-warning"]
    assert f"{answer.json['id']} {facts['warning']}" in caplog.messages
    assert f" dropped={facts['dropped_prompt_tokens']} " in line


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": LONG, "on_overflow": "refuse"}, "messages"),
        (COMPLETIONS, {"prompt": "word " * 40, "on_overflow": "refuse"}, "prompt"),
        (RESPONSES, {"input": "word " * 40, "on_overflow": "refuse"}, "input"),
        (RESPONSES, {"input": "word " * 40, "truncation": "disabled"}, "input"),
    ],
)
def test_a_prompt_that_does_not_fit_can_be_refused(
    server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    answer = server.post(path, body)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("context_length_exceeded", param)
    assert f"`{param}` must have at most {CAPACITY} tokens" in answer.error["message"]
    assert "restart the server with a larger `--window`" in answer.error["message"]
    assert server.post(path, {**body, "on_overflow": None, "truncation": None}).status == 200


def test_a_server_may_refuse_by_default(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama"), on_overflow="refuse", sinks="9") as server:
        assert server.post(CHAT, {"messages": LONG}).error["code"] == "context_length_exceeded"
        assert server.post(CHAT, {"messages": LONG, "on_overflow": "evict"}).status == 200
        body = {"input": "word " * 40}
        assert server.post(RESPONSES, body).status == 400
        found = server.post(RESPONSES, {**body, "truncation": "auto", "max_output_tokens": 4}).json
        assert found["truncation"] == "auto"
        model = server.ask("GET", "/v1/models").json["data"][0]
        assert model["max_model_len"] == CAPACITY
        assert (model["sinkstream"]["pinned"], model["sinkstream"]["window"]) == (9, 60)
        assert own(server.post(CHAT, {"messages": HELLO, **SHORT}))["pinned_tokens"] == 9


def test_the_advertised_length_is_that_of_a_conversation(server: Running) -> None:
    model = server.ask("GET", "/v1/models").json["data"][0]
    assert model["max_model_len"] == 1 << 20
    assert model["sinkstream"]["pinned"] == "system"
