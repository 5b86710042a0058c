"""What a body costs before it is known to be right."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sinkstream.server import parsing
from sinkstream.server.answer import Receive
from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.middleware import App, Middleware
from sinkstream.server.parsing import (
    MOST_DEPTH,
    MOST_PARTS,
    MOST_VALUES,
    as_kind,
    object_of,
    parse,
    parse_body,
    shape_of,
)
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
        log = RequestLog("id", body=b" " * (1 << 20), on_dropped=freed.append)
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


def test_a_body_that_is_not_parsed_in_time_is_refused() -> None:
    pool, go_on = Pool(), threading.Event()

    async def parse_while_busy() -> None:
        busy = [pool.submit(lambda: go_on.wait(60)) for _ in range(2)]
        log = RequestLog("id", body=b" " * (1 << 20), timeout_s=5)
        log.arrived_at -= 9
        with pytest.raises(ApiError, match="has not begun within 5 s"):
            await parse(log, pool, CompletionRequest)
        assert not log.body
        go_on.set()
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


VALUES, PARTS = f"{MOST_VALUES} keys and values", f"{MOST_PARTS} keys, arrays and objects"


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (b"1," * MOST_VALUES, VALUES),
        (b"[]," * MOST_PARTS, PARTS),
        (b'{"a":1},' * (MOST_PARTS // 2), PARTS),
        (b"{" + b'"a":1,' * MOST_PARTS + b'"b":1},', PARTS),
        (rb'"\\\"\\\"",' + b"1," * MOST_VALUES, VALUES),
    ],
    ids=["numbers", "arrays", "objects", "keys", "after quotes"],
)
def test_a_body_has_a_largest_number_of_values(values: bytes, rule: str) -> None:
    """They take memory and time that the length of a body does not show."""
    with pytest.raises(ApiError, match=f"at most {rule}") as caught:
        object_of(b'{"prompt": [' + values + b"1]}")
    assert caught.value.status == 413


JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part),
)


def counts_of(value: Any) -> tuple[int, int, int]:
    """Return what `shape_of` counts in a value's JSON text."""
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = [counts_of(part) for part in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    parts = 1 + keys + sum(parts for _, parts, _ in inner)
    values = 1 + keys + max(0, len(value) - 1) + sum(values for values, _, _ in inner)
    return values, parts, 1 + max((depth for _, _, depth in inner), default=0)


@given(JSON, st.booleans(), st.integers(1, 9))
def test_the_shape_of_a_text_is_that_of_its_value(value: Any, is_ascii: bool, size: int) -> None:
    """Wherever the slices of the text end."""
    text = json.dumps(value, ensure_ascii=is_ascii)
    is_plain = text.isascii() and "\\u" not in text.replace(r"\\", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_SLICE", size)
        found = shape_of(bytearray(text.encode("utf-8", "surrogatepass")))
    assert found == (*counts_of(value), is_plain)


@pytest.mark.parametrize("text", [b"", b'"', b'"\\', b'"\\u', b"\\", b'{"a": "'])
def test_a_text_that_is_cut_has_a_shape(text: bytes) -> None:
    shape = shape_of(text)
    assert shape.values == shape.parts == 2 * text.startswith(b"{")
    assert shape.depth == text.startswith(b"{")
    assert shape.is_plain == (text != b'"\\u')


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_a_body_has_a_largest_depth(begin: str, end: str) -> None:
    """What a response repeats of it is written by a program that has one as well."""

    def nested(depth: int) -> bytes:
        inner = f"{begin * (depth - 1)}1{end * (depth - 1)}"
        return b'{"a": "[[", "b": ' + inner.encode() + b"}"

    assert object_of(nested(MOST_DEPTH))
    rule = f"must be nested at most {MOST_DEPTH} levels deep, but is {MOST_DEPTH + 1}"
    with pytest.raises(ApiError, match=rule) as caught:
        object_of(nested(MOST_DEPTH + 1))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "width"), [("the sea", 1), ("the s\u00e9a", 4), ("the s\\u00e9a", 4)]
)
def test_a_request_counts_with_the_memory_of_its_text(text: str, width: int) -> None:
    body = f'{{"prompt": "{text}"}}'.encode()
    log, pool = RequestLog("id", body=body), Pool()
    asyncio.run(parse(log, pool, CompletionRequest))
    assert log.parsed_bytes == width * len(body)
    pool.close()


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
