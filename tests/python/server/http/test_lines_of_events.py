"""An event is one line also for readers that end lines as `str.splitlines` and httpx do."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from sinkstream.model import host_of
from sinkstream.server.server_sent_events import DONE, error_event
from tests.python.server.http.running_server import CHAT, COMPLETIONS, HELLO, Running

RESPONSES = "/v1/responses"
LINE_BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


@pytest.fixture(scope="module")
def bias(server: Running) -> dict[str, float]:
    """Return a bias with which the model writes U+0085 again and again."""
    table = host_of(server.model).table
    assert table is not None
    return {str(table.pieces.index(byte)): 100.0 for byte in (b"\xc2", b"\x85")}


def data_of(body: bytes) -> list[Any]:
    """Return the data of a stream, read line by line."""
    lines = [line for line in body.decode().splitlines() if line[:1] not in ("", ":")]
    assert all(line.startswith(("data: ", "event: ")) for line in lines), lines
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


def streamed(server: Running, path: str, body: dict[str, Any]) -> list[Any]:
    answer = server.post(path, {"stream": True, "seed": 7, "ignore_eos": True, **body})
    assert answer.status == 200, answer.body
    return data_of(answer.body)


def test_the_text_of_a_chat_and_of_a_completion(server: Running, bias: dict[str, float]) -> None:
    own = {"max_tokens": 60, "logit_bias": bias}
    chunks = streamed(server, CHAT, {"messages": HELLO, "logprobs": True, **own})
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "\x85" in "".join(texts)
    chunks = streamed(server, COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 1, **own})
    assert "\x85" in "".join(chunk["choices"][0]["text"] for chunk in chunks)


def test_what_a_client_has_sent_comes_back(server: Running) -> None:
    asked = {"prompt": LINE_BREAKS, "echo": True, "max_tokens": 2}
    chunks = streamed(server, COMPLETIONS, asked)
    assert LINE_BREAKS in "".join(chunk["choices"][0]["text"] for chunk in chunks)
    asked = {"input": "a", "metadata": {"a": LINE_BREAKS}, "max_output_tokens": 2}
    first = streamed(server, RESPONSES, asked)[0]
    assert first["response"]["metadata"] == {"a": LINE_BREAKS}


def test_an_error_in_a_stream() -> None:
    error = {"error": {"message": LINE_BREAKS}}
    (data,) = data_of(error_event(orjson.dumps(error)) + DONE)
    assert data == error
