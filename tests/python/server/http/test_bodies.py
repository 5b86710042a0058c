"""Bad values in every numeric field, and bad bodies: always a 400 with the field, never a crash."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.python.lanes import cases
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    HELLO,
    Running,
    read_all,
    running,
)

RESPONSES = "/v1/responses"
WriteOnce = Callable[[str], Path]


@pytest.fixture(
    scope="module", params=cases(["none", "kept"], always=lambda store: store == "none")
)
def server(
    request: pytest.FixtureRequest,
    tiny_folder: WriteOnce,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """Give a server without a store, and one with a store: they refuse the same."""
    store = "none" if request.param == "none" else str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store) as found:
        yield found


NEVER = ["1", True, [1], {}]
INTEGERS: dict[str, list[Any]] = {
    "max_tokens": [-2, 2**31, 2**53, 2**63, 1.5],
    "max_completion_tokens": [-2, 2**31, 2**63, 1.5],
    "n": [0, -1, 69, 2**31, 2**53, 2**63, 1.5],
    "seed": [2**64, -(2**63) - 1, 1.5],
    "top_k": [-2, 2**31, 2**53, 2**63, 0.5],
    "top_logprobs": [-1, 21, 2**31, 2**63, 0.5],
}
NUMBERS: dict[str, list[Any]] = {
    "temperature": [-1, 101, 2**31, 2**63],
    "top_p": [-1, 1.1, 2**53],
    "min_p": [-1, 1.1, 2**53],
    "repetition_penalty": [-1, 0, 101, 2**53],
    "presence_penalty": [-101, 101, 2**53],
    "frequency_penalty": [-101, 101, 2**53],
    "timeout_s": [-1, 0, 2**53],
}
CASES = [(name, value) for name, values in {**INTEGERS, **NUMBERS}.items()
         for value in values + NEVER]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), CASES, ids=str)
def test_a_bad_number_is_refused_by_name(server: Running, name: str, value: Any) -> None:
    check_that_it_is_refused(server, name, value)


def test_a_server_with_a_store_refuses_the_same(tiny_folder: WriteOnce, tmp_path: Path) -> None:
    """For each field once; `make test-full` does all that is here with such a server."""
    with running(tiny_folder("llama"), store=str(tmp_path)) as kept:
        for name, value in dict(CASES).items():
            check_that_it_is_refused(kept, name, value)


def check_that_it_is_refused(server: Running, name: str, value: Any) -> None:
    logprobs = {"logprobs": True} if name == "top_logprobs" else {}
    answer = server.post(CHAT, {"messages": HELLO, "max_tokens": 1, **logprobs, name: value})
    assert answer.status == 400
    assert answer.error["param"] == name
    assert f"`{name}`" in answer.error["message"]


@pytest.mark.parametrize("name", [*INTEGERS, *NUMBERS])
def test_null_is_the_default(server: Running, name: str) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 1, name: None}
    assert server.post(CHAT, body).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"1", b'"x"', b"null", b"{}", b'{"prompt": NaN}', b"\xff", b"{}{}",
        b'{"prompt": "a", "temperature": 1e400}', b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", b'{"prompt": []}',
        b'{"prompt": [[]]}', b'{"prompt": ["a", 1]}', b'{"prompt": [1, "a"]}',
        b'{"prompt": [-1]}', b'{"prompt": [99999999]}', b'{"prompt": {"a": 1}}',
    ],
)  # fmt: skip
def test_a_bad_body_is_refused(server: Running, body: bytes) -> None:
    answer = server.ask("POST", COMPLETIONS, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


def test_of_a_key_that_is_there_twice_the_last_counts(server: Running) -> None:
    body = b'{"prompt": "a", "max_tokens": -2, "max_tokens": 1}'
    assert server.ask("POST", COMPLETIONS, body).json["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    "messages",
    [
        [], [{}], [{"role": "user"}], [{"role": "robot", "content": "a"}], ["a"], "a", None,
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
    ],
)  # fmt: skip
def test_bad_messages_are_refused(server: Running, messages: Any) -> None:
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert (answer.status, answer.error["param"]) == (400, "messages")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_schema"}), ("response_format", {"type": "x"}),
        ("tool_choice", "required"), ("tool_choice", {"type": "function"}), ("audio", {}),
        ("functions", [{"name": "f"}]), ("tools", [{"type": "function"}]),
        ("modalities", ["text", "audio"]), ("web_search_options", {}),
        ("stream_options", {"include_usage": True}), ("top_logprobs", 2),
        ("logit_bias", {"x": 1}), ("logit_bias", {"99999999": 1}), ("stop", [1]),
        ("stop", ["a"] * 65), ("stop_token_ids", [-1]),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(server: Running, name: str, value: Any) -> None:
    answer = server.post(CHAT, {"messages": HELLO, "max_tokens": 1, name: value})
    assert (answer.status, answer.error["param"]) == (400, name)


def test_what_clients_send_in_addition_is_ignored(server: Running) -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = {
        "messages": [{"role": "user", "content": [marked], "id": "x"}], "max_tokens": 1,
        "store": True, "metadata": {}, "user": "u", "parallel_tool_calls": True, "verbosity": "low",
        "service_tier": "auto", "reasoning_effort": "low", "prediction": None, "unknown": [1],
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "suffix": None,
    }  # fmt: skip
    answer = server.post(CHAT, body)
    assert answer.status == 200
    ignored = answer.json["usage"]["sinkstream"]["ignored_fields"]
    assert ignored == ["metadata", "user", "verbosity", "service_tier", "unknown"]
    assert answer.headers["x-sinkstream-ignored"] == ", ".join(ignored)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "the"}), (RESPONSES, {"input": "a"})],
)
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_are_named(
    server: Running, path: str, prompt: dict[str, Any], stream: bool
) -> None:
    wrong = {"temprature": 0.1, "min_tokens": 5, "b\u00e9d\n": 1, "best": None, "stream": stream}
    settings = {"stream_options": {"include_usage": True, "usage": 1}} if stream else {}
    answer = server.post(path, {**prompt, **wrong, **settings})
    names = ["temprature", "min_tokens", "b\\xe9d\\n", *["stream_options.usage"] * stream]
    assert answer.headers["x-sinkstream-ignored"] == ", ".join(names)
    found = re.findall(rb'"ignored_fields":(\[[^]]*\])', answer.body)
    assert [json.loads(one) for one in found] == [names] * len(found)
    assert len(found) == (2 if stream and path != RESPONSES else 1)


def test_an_unknown_field_is_logged_once_also_where_no_reply_names_it(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sinkstream.server"):
        for _ in range(2):
            answer = server.post("/tokenize", {"content": "a", "add_specials": True})
            assert answer.headers["x-sinkstream-ignored"] == "add_specials"
        server.wait_until(lambda: len(caplog.messages) >= 3, "both requests are logged")
    assert len([line for line in caplog.messages if "`add_specials`" in line]) == 1


def test_a_path_that_is_not_served_is_named_to_the_client_only(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sinkstream.server"):
        error = server.post("/v1/chat/completion", {"messages": HELLO}).error
        server.wait_until(lambda: len(caplog.messages) >= 1, "it is logged")
    assert (error["code"], error["message"]) == (
        "not_found", "server: there is no path /v1/chat/completion."
    )  # fmt: skip
    assert " POST none 404 " in caplog.messages[-1]


@pytest.mark.parametrize(
    ("given", "same"), [({"top_k": -1}, {"top_k": 0}), ({"top_p": 0}, {"temperature": 0})], ids=str
)
def test_numbers_of_other_engines_clients_mean_the_same_here(
    server: Running, given: dict[str, Any], same: dict[str, Any]
) -> None:
    body = {"prompt": "the", "max_tokens": 20, "seed": 5, "temperature": 1.5, "ignore_eos": True}
    answers = [server.post(COMPLETIONS, body | more).json for more in (given, same)]
    assert answers[0]["choices"] == answers[1]["choices"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_minus_one_leaves_the_number_of_tokens_to_the_server(server: Running, name: str) -> None:
    body = {"messages": HELLO, "stop": ["a"], "ignore_eos": True, "seed": 1}
    answers = [server.post(CHAT, body | more).json for more in ({name: -1}, {})]
    assert answers[0]["usage"]["completion_tokens"] == answers[1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(("seed", "count"), [(-1, 2), (-2, 1)])
def test_minus_one_asks_for_a_random_seed(server: Running, seed: int, count: int) -> None:
    """As in llama.cpp and vLLM, whose clients send it with every request."""
    body = {"prompt": "the", "max_tokens": 40, "temperature": 5, "ignore_eos": True, "seed": seed}
    texts = {server.post(COMPLETIONS, body).json["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == count


def test_what_precedes_a_response_is_refused_by_its_own_field(server: Running) -> None:
    long = {"prompt": "7" * 5_000_000, "echo": True, "logprobs": 1, "max_tokens": 0}
    error = server.post(COMPLETIONS, long).error
    assert error["param"] == "prompt"
    assert error["message"].startswith("`prompt` must have at most ")
    long = {"input": "7" * 5_000_000}
    error = server.post("/v1/responses/input_tokens", long).error
    assert error["param"] == "input"
    assert error["message"].startswith("`input` must have at most ")


def test_a_prompt_that_all_choices_repeat_is_bounded(server: Running) -> None:
    body = {"prompt": "the " * 200_000, "echo": True, "n": 60, "max_tokens": 1, "stream": True}
    answer = server.post(COMPLETIONS, body)
    assert (answer.status, answer.error["param"]) == (400, "echo")
    assert "`echo` must repeat at most " in answer.error["message"]


def test_a_deep_body_is_refused_and_one_less_deep_is_repeated(server: Running) -> None:
    def nested(depth: int) -> dict[str, Any]:
        inner: dict[str, Any] = {}
        for _ in range(depth):
            inner = {"a": inner}
        return {"input": "a", "max_output_tokens": 1, "text": {"format": {"type": "text", **inner}}}

    for stream in (True, False):
        answer = server.post("/v1/responses", {**nested(190), "stream": stream})
        assert answer.status == 200, answer.body
        answer = server.post("/v1/responses", {**nested(240), "stream": stream})
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")


def test_a_salt_has_a_largest_size(server: Running) -> None:
    error = server.post(COMPLETIONS, {"prompt": "a", "cache_salt": "s" * 513}).error
    assert error["message"] == "`cache_salt` must have at most 512 characters."


def test_errors_of_a_request_name_the_field_first_and_speak_of_the_model(server: Running) -> None:
    for body in ({"top_p": 2}, {"stop_token_ids": [-1]}, {"n": 0}, {"tools": [{"type": "x"}]}):
        answer = server.post(CHAT, {"messages": HELLO, **body})
        (name,) = body
        assert f"`{name}`" in answer.error["message"].partition(" must ")[0], answer.error
    for body, message in (
        ({"sinks": True}, "`sinks` must be an integer or a string, but is true."),
        ({"tools": [{}]}, 'Tool 0 of `tools`: `type` must be "function", but is null.'),
        (
            {"logit_bias": {"a": 1}},
            "Each key of `logit_bias` must be a token id, but these are not",
        ),
        ({"reasoning_effort": "1"}, "`reasoning_effort` must be an effort such as"),
        ({"prompt_cache_key": "a" * 513}, "`prompt_cache_key` must have at most 512 characters"),
    ):
        error = server.post(CHAT, {"messages": HELLO, **body}).error
        assert error["message"].startswith(message), error
        assert [error["param"]] == list(body)
    calls = [{"role": "tool", "content": "a"}, {"role": "user"}]
    message = server.post(CHAT, {"messages": calls}).error["message"]
    assert message.startswith("Message 1 of `messages` must have "), message


@pytest.mark.parametrize("coding", ["gzip", "deflate", "identity", "zstd", "gzip, zstd"])
def test_a_body_may_be_in_a_coding(server: Running, coding: str) -> None:
    import gzip
    import zlib

    from sinkstream.server.content_codings import zstd

    makers = {
        "gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress, "identity": bytes,
    }  # fmt: skip
    data = json.dumps({"prompt": "the sea", "max_tokens": 1}).encode()
    for name in coding.split(", "):
        data = makers[name](data)
    answer = server.ask("POST", COMPLETIONS, data, {"Content-Encoding": coding})
    assert answer.status == 200, answer.body
    assert server.metric("sinkstream_request_body_bytes") == 0


@pytest.mark.parametrize(
    ("coding", "status", "code"),
    [("br", 415, "content_encoding"), ("gzip", 400, "content_encoding")],
)
def test_a_body_in_another_coding_is_refused(
    server: Running, coding: str, status: int, code: str
) -> None:
    answer = server.ask("POST", COMPLETIONS, b'{"prompt": "a"}', {"Content-Encoding": coding})
    assert (answer.status, answer.error["code"]) == (status, code)


def test_a_compressed_body_has_the_same_largest_size(server: Running) -> None:
    import gzip

    data = gzip.compress(b'{"prompt": "' + bytes(33 << 20) + b'"}', 1)
    answer = server.ask("POST", COMPLETIONS, data, {"Content-Encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert server.metric("sinkstream_request_body_bytes") == 0


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        ("Content-Length: x", "Invalid character in Content-Length"),
        ("Content-Length: 1\r\nTransfer-Encoding: chunked", "Transfer-Encoding can't be present"),
        ("Content-Length: 1\r\nContent-Length: 2", "Duplicate Content-Length"),
        ("Transfer-Encoding: gzip", "Transfer-Encoding"),
        ("Bad Name: x", "Invalid header token"),
        ("Transfer-Encoding: chunked\r\n\r\nzz", "Invalid character in chunk size"),
    ],
)
def test_a_request_that_cannot_be_framed_is_told_why(
    server: Running, head: str, cause: str
) -> None:
    status, answer = server.raw(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (status, error["code"]) == (400, "invalid_http")
    assert cause in error["message"]


@pytest.mark.parametrize(
    ("sent", "cause"),
    [(b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2")],
)
def test_another_protocol_is_named(server: Running, sent: bytes, cause: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        answer = read_all(connection)
    assert cause in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_a_body_has_a_largest_size(server: Running) -> None:
    length = (32 << 20) + 1
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    status, answer = server.raw(f"{head}Content-Length: {length}\r\n")
    assert status == 413
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"
    assert server.metric("sinkstream_request_body_bytes") == 0
