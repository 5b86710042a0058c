"""The memory of replies that are not streamed is bounded before they are generated."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.python.server.http.running_server import CHAT, COMPLETIONS, HELLO, Running

LONG = {"max_tokens": 6_500, "ignore_eos": True, "seed": 1, "temperature": 0.0}
CHAT_LONG = {"messages": HELLO, **LONG, "logprobs": True, "top_logprobs": 20}
COMPLETION = {"prompt": "the", **LONG}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {**CHAT_LONG, "n": 2}, "top_logprobs"),
        (CHAT, {**CHAT_LONG, "max_tokens": 60_000}, "top_logprobs"),
        (CHAT, {**CHAT_LONG, "max_tokens": 40_000, "top_logprobs": 0, "n": 4}, "logprobs"),
        (CHAT, {"messages": HELLO, **LONG, "max_completion_tokens": 50_000, "n": 60}, "n"),
        (COMPLETIONS, {**COMPLETION, "logprobs": 5, "max_tokens": 30_000}, "logprobs"),
        (COMPLETIONS, {**COMPLETION, "prompt": ["the"] * 60, "max_tokens": 50_000}, "n"),
    ],
)
def test_a_reply_that_may_be_too_large_is_refused(
    server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    answer = server.post(path, body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert "MiB" in answer.error["message"]


def test_the_same_is_allowed_in_a_stream(server: Running) -> None:
    with server.begin(CHAT, {**CHAT_LONG, "n": 2, "stream": True}) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_all_requests_together_are_bounded(server: Running) -> None:
    server.wait_until(lambda: held(server) == 0, "nothing is held")
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(server.begin(CHAT, CHAT_LONG))
        server.wait_until(lambda: server.metric("sinkstream_open_replies") == 4, "all have begun")
        answer = server.post(CHAT, CHAT_LONG)
        assert (answer.status, answer.error["code"]) == (429, "capacity")
        assert "retry-after" in answer.headers
    server.wait_until(lambda: held(server) == 0, "nothing is held")


def held(server: Running) -> float:
    return server.metric("sinkstream_whole_reply_bytes")
