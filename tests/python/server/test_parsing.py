"""What a body costs before it is known to be right."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from pydantic import ValidationError

from sinkstream.server.answer import Receive
from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.middleware import App, Middleware
from sinkstream.server.parsing import MOST_VALUES, as_kind, object_of, parse, parse_body
from sinkstream.server.pool import Pool
from sinkstream.server.request_bodies import SMALL_BYTES, ChatRequest, CompletionRequest
from sinkstream.server.request_log import RequestLog
from sinkstream.server.service import Service
from sinkstream.text.messages import without_unknown


@pytest.mark.parametrize("item", [None, {}, 1.5, True])
@pytest.mark.parametrize("name", ["prompt", "stop", "stop_token_ids"])
def test_a_wrong_list_has_one_error_for_each_type(name: str, item: object) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"prompt": "", name: [item] * 1000})
    assert caught.value.error_count() <= 4


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("messages", [], "`messages` must not be empty."),
        ("messages", ["a"], "`messages.0` must be an object, but is a string."),
        ("stop", 1, "`stop` must be a string or an array, but is 1."),
        ("stop", ["a", 1], "`stop.1` must be a string, but is 1."),
        ("prompt", ["a", 1], "`prompt.1` must be a string, but is 1."),
        ("prompt", [[1, "a"]], "`prompt.0.1` must be an integer, but is a string."),
        ("prompt", [None],
         "`prompt.0` must be an integer or a string or an array, but is null."),
        ("logit_bias", {"42": None}, "`logit_bias.42` must be a number, but is null."),
    ],
)  # fmt: skip
def test_an_error_names_the_wrong_item(name: str, value: object, sentence: str) -> None:
    kind = ChatRequest if name == "messages" else CompletionRequest
    with pytest.raises(ApiError) as caught:
        as_kind({"prompt": "", name: value}, kind)
    assert (caught.value.message, caught.value.param) == (sentence, name)


def test_a_body_counts_until_it_is_parsed() -> None:
    pool, go_on = Pool(), threading.Event()
    freed: list[int] = []

    async def parse_while_busy() -> None:
        busy = [pool.submit(lambda: go_on.wait(60)) for _ in range(2)]
        log = RequestLog("id", body=b" " * (1 << 20), on_taken=freed.append)
        task = asyncio.create_task(parse(log, pool, CompletionRequest))
        await asyncio.sleep(0.05)
        assert freed == []
        go_on.set()
        with pytest.raises(ApiError, match="must be JSON"):
            await task
        assert freed == [1 << 20]
        await asyncio.gather(*busy)

    asyncio.run(parse_while_busy())
    pool.close()


@pytest.mark.parametrize("size", [SMALL_BYTES // 2, 1 << 22])
@pytest.mark.parametrize("end", [b"", b'"}', b'", "prompt": 1.5}'])
def test_a_body_that_is_refused_is_not_held_by_its_error(size: int, end: bytes) -> None:
    """The client may be slow to read why it is refused, and the body no longer counts."""
    pool = Pool()

    async def refused() -> ApiError:
        start = b'{"padding": "'
        log = RequestLog("id", body=start + b"a" * (size - len(start) - len(end)) + end)
        with pytest.raises(ApiError) as caught:
            await parse(log, pool, CompletionRequest)
        return caught.value

    tracemalloc.start()
    error = asyncio.run(refused())
    pool.close()  # its threads have forgotten the call
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert error.status == 400
    assert held < size / 2


def test_a_body_that_is_too_long_is_not_held_by_its_error() -> None:
    size = 1 << 22
    service = Service(replace(ServerConfig(), max_body_bytes=size))

    async def send_part() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(1 << 16), "more_body": True}

    async def refused() -> ApiError:
        middleware = Middleware(cast(App, None), service)
        with pytest.raises(ApiError) as caught:
            await middleware._read_body(cast(Receive, send_part), RequestLog("id"))
        return caught.value

    tracemalloc.start()
    error = asyncio.run(refused())
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert error.status == 413
    assert service.bodies.held == 0
    assert held < size / 2
    service.pool.close()


def test_a_template_sees_the_fields_of_a_message_in_one_order() -> None:
    given = {"content": "x", "role": "user"}
    (plain,), (marked,) = without_unknown([given]), without_unknown([{**given, "cache_control": 1}])
    assert list(plain.items()) == list(marked.items()) == [("role", "user"), ("content", "x")]


HALF = MOST_VALUES // 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"1," * MOST_VALUES + b"1]}",
        b'{"prompt": [' + b"[]," * HALF + b"1]}",
        b'{"prompt": [' + b'{"a":1},' * (MOST_VALUES // 3 + 1) + b"1]}",
        b'{"a": "' + rb"\\\"" * 9 + b'", "prompt": [' + b"1," * MOST_VALUES + b"1]}",
    ],
    ids=["numbers", "arrays", "objects", "after quotes"],
)
def test_a_body_has_a_largest_number_of_values(body: bytes) -> None:
    """They take memory and time that the length of a body does not show."""
    with pytest.raises(ApiError, match=f"at most {MOST_VALUES} keys and values") as caught:
        object_of(body)
    assert caught.value.status == 413


@pytest.mark.parametrize("text", [b"1,", b"{[:,", rb"a\\", rb"\",", rb"\\\","], ids=str)
def test_what_is_in_strings_does_not_count(text: bytes) -> None:
    body = b'{"prompt": "' + text * MOST_VALUES + b'", "a": [1, 2]}'
    assert object_of(body)["a"] == [1, 2]
    assert object_of(body.decode())["a"] == [1, 2]


HOSTILE = {
    "arrays": b"[],",
    "objects": b'{"a":1},',
    "deep": b'[{"a":[{}]}],',
    "numbers": b"1.5,",
    "strings": b'"ab",',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_body_that_is_small_as_text_takes_bounded_memory(kind: str) -> None:
    """Whatever its length: all of its values are counted before the first one is made."""
    part = HOSTILE[kind]
    for size in (2 << 20, 16 << 20):
        body = b'{"messages": [' + part * (size // len(part)) + b"1]}"
        tracemalloc.start()
        with suppress(ApiError):
            parse_body(body, ChatRequest)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < len(body) + MOST_VALUES * 100
