"""What the event loop does for a request does not grow with the request.

The loop's thread counts its own calls between two callbacks, and the bytes that it gives to the
JSON parser and writer. Both are bounded, whatever a client sends: other clients wait meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import orjson
from websockets.sync.client import connect

from sinkstream.server.request_bodies import SMALL_BYTES
from tests.python.server.http.running_server import CHAT, COMPLETIONS, Running, running

MANY = 6000  # messages, parts, ids: more than the calls that are allowed
MOST_CALLS = 4000
TEXT = "the sea " * 10_000  # longer than what is handled on the loop
SHORT: dict[str, Any] = {"max_tokens": 1, "seed": 1}
RESPONSE: dict[str, Any] = {"max_output_tokens": 1, "seed": 1, "sinks": 4}
PART = {"type": "text", "text": "a"}


class Counted:
    """What the thread of the event loop has done at most in one callback."""

    def __init__(self) -> None:
        self.calls = self.json_bytes = self._calls = 0
        self.where = ""

    def reset(self) -> None:
        self.calls = self.json_bytes = self._calls = 0

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; `threading.setprofile` calls this in each thread that begins."""
        if threading.current_thread().name != "test-server":
            sys.setprofile(None)
        elif event in ("call", "c_call"):
            self._calls += 1
            if frame.f_code is asyncio.Handle._run.__code__ and event == "call":
                self._calls = 0
            elif self._calls > self.calls:
                self.calls, self.where = self._calls, str(frame.f_code)

    def watched(self, call: Callable[..., Any], size: Callable[[Any, Any], int]) -> Any:
        """Return a function of orjson that notes how many bytes the loop's thread gives it."""

        def noted(value: Any, *more: Any, **named: Any) -> Any:
            result = call(value, *more, **named)
            if threading.current_thread().name == "test-server":
                self.json_bytes = max(self.json_bytes, size(value, result))
            return result

        return noted


@pytest.fixture(scope="module")
def counted() -> Iterator[Counted]:
    found = Counted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orjson, "loads", found.watched(orjson.loads, lambda text, _: len(text)))
        patch.setattr(orjson, "dumps", found.watched(orjson.dumps, lambda _, text: len(text)))
        threading.setprofile(found.profile)
        try:
            yield found
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(
    counted: Counted,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store) as found:
        for path, body in WARM_UP:  # the first request of a kind loads and compiles
            assert found.post(path, body).status == 200
        yield found


def turns(count: int) -> list[dict[str, str]]:
    said = [{"role": role, "content": "the"} for role in ("user", "assistant")] * (count // 2)
    return [*said, {"role": "user", "content": "sea"}]


def items(count: int) -> list[dict[str, Any]]:
    part = {"type": "input_text", "text": "a"}
    return [{"role": "user", "content": [part] * count}]


PARTS = [{"role": "user", "content": [PART] * MANY}]
PREDICTED = [{"type": "content", "content": content} for content in (TEXT, [PART] * MANY)]
BIAS = {str(number): 0.0 for number in range(290)}
TOOLS = [{"type": "function", "name": f"f{i}", "description": "the " * 1000} for i in range(40)]
SAID_LONG = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [PART] * MANY}]
CHOICE = {"choice": [f"a{number}" for number in range(10_000)]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a long message": (CHAT, {"messages": [{"role": "user", "content": TEXT}], **SHORT}),
    "many messages": (CHAT, {"messages": turns(MANY), **SHORT}),
    "many parts": (CHAT, {"messages": PARTS, **SHORT, "store": False}),
    "many parts, streamed": (CHAT, {"messages": PARTS, **SHORT, "stream": True}),
    "a bias in a long request": (
        CHAT, {"messages": turns(MANY), **SHORT, "logit_bias": BIAS, "store": False}),
    "a long prediction": (CHAT, {"messages": turns(2), **SHORT, "prediction": PREDICTED[0]}),
    "a prediction of many parts": (
        CHAT, {"messages": turns(2), **SHORT, "prediction": PREDICTED[1]}),
    "a beginning of many parts": (
        CHAT, {"messages": SAID_LONG, **SHORT, "continue_final_message": True}),
    "a long prompt": (COMPLETIONS, {"prompt": TEXT, **SHORT}),
    "a prompt of ids": (COMPLETIONS, {"prompt": [5] * MANY * 9, **SHORT}),
    "a prompt that is repeated": (COMPLETIONS, {"prompt": TEXT, **SHORT, "echo": True}),
    "a prompt that is repeated, streamed": (
        COMPLETIONS, {"prompt": TEXT, **SHORT, "echo": True, "stream": True}),
    "a prompt that is scored": (
        COMPLETIONS, {"prompt": TEXT[:12_000], **SHORT, "prompt_logprobs": 1}),
    "many log-probabilities": (
        COMPLETIONS, {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "logprobs": 2}),
    "a long input": ("/v1/responses", {"input": TEXT, **RESPONSE}),
    "an input of many parts": ("/v1/responses", {"input": items(MANY), **RESPONSE}),
    "an input of many items": ("/v1/responses", {"input": turns(MANY), **RESPONSE}),
    "long instructions": ("/v1/responses", {"input": "a", "instructions": TEXT, **RESPONSE}),
    "long instructions, streamed": (
        "/v1/responses", {"input": "a", "instructions": TEXT, **RESPONSE, "stream": True}),
    "a long input that is counted": ("/v1/responses/input_tokens", {"input": items(MANY)}),
    "tokens of a text": ("/tokenize", {"content": TEXT}),
    "pieces of a text": ("/tokenize", {"content": TEXT, "with_pieces": True}),
    "tokens and texts": ("/tokenize", {"prompt": TEXT, "return_token_strs": True}),
    "tokens of many parts": ("/tokenize", {"messages": PARTS}),
    "text of tokens": ("/detokenize", {"tokens": [5] * MANY * 9}),
    "a template of many parts": ("/apply-template", {"messages": PARTS}),
    "many parts that are counted": ("/v1/chat/completions/input_tokens", {"messages": PARTS}),
}  # fmt: skip


SAID = [{"role": "user", "content": "a"}]
WARM_UP: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": SAID, **SHORT}),
    (CHAT, {"messages": SAID, **SHORT, "stream": True}),
    (COMPLETIONS, {"prompt": "a", **SHORT, "logprobs": 1}),
    (COMPLETIONS, {"prompt": "a", **SHORT, "stream": True, "echo": True}),
    ("/v1/responses", {"input": "a", **RESPONSE}),
    ("/v1/responses", {"input": "a", **RESPONSE, "stream": True}),
    ("/v1/responses/input_tokens", {"input": "a"}),
    ("/tokenize", {"content": "a"}),
    ("/detokenize", {"tokens": [5]}),
    ("/apply-template", {"messages": SAID}),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_many_choices_are_refused_in_few_calls_of_the_loop(
    server: Running, counted: Counted, path: str
) -> None:
    given = {"messages": SAID} if path == CHAT else {"prompt": "a"}
    counted.reset()
    answer = server.post(path, {**given, "structured_outputs": CHOICE, "user": "a" * SMALL_BYTES})
    assert (answer.status, answer.error["param"]) == (400, "structured_outputs")
    check(counted)


def check(counted: Counted) -> None:
    assert 0 < counted.calls <= MOST_CALLS, (counted.calls, counted.where)
    assert counted.json_bytes <= SMALL_BYTES


@pytest.mark.parametrize("kind", BODIES)
def test_a_request_of_any_length_takes_few_calls_of_the_loop(
    server: Running, counted: Counted, kind: str
) -> None:
    path, body = BODIES[kind]
    data = json.dumps(body).encode()
    assert len(data) > SMALL_BYTES or kind in ("a prompt that is scored", "many log-probabilities")
    counted.reset()
    answer = server.ask("POST", path, data)
    assert answer.status == 200, answer.body[:500]
    check(counted)


def test_a_stored_response_of_any_length_takes_few_calls_of_the_loop(
    server: Running, counted: Counted
) -> None:
    body = {"input": items(MANY), "instructions": TEXT, **RESPONSE}
    made = server.post("/v1/responses", body).json["id"]
    counted.reset()
    for path in (
        f"/v1/responses/{made}", f"/v1/responses/{made}?stream=true", f"/v1/sessions/{made}",
        f"/v1/responses/{made}/input_items", f"/v1/sessions/{made}/turns", "/v1/sessions",
    ):  # fmt: skip
        assert server.ask("GET", path).status == 200
    check(counted)


def test_a_message_of_a_socket_of_any_length_takes_few_calls_of_the_loop(
    server: Running, counted: Counted
) -> None:
    create = {"type": "response.create", "input": items(MANY), "instructions": TEXT, **RESPONSE}
    with connect(f"ws://127.0.0.1:{server.port}/v1/responses", max_size=None) as socket:
        counted.reset()
        socket.send(json.dumps(create))
        while (event := json.loads(socket.recv(60)))["type"] not in (
            "response.completed", "response.incomplete",
        ):  # fmt: skip
            assert event["type"] != "error", event
    check(counted)


def test_what_is_counted_is_what_the_loop_does(server: Running, counted: Counted) -> None:
    """The counts see work on the loop: a body that is short is handled there."""
    counted.reset()
    assert server.post("/tokenize", {"content": "a " * 1000}).status == 200
    assert counted.json_bytes > 2000
