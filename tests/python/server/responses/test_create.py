"""`POST /v1/responses`: objects and events as the schema and OpenAI's client want them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.python.lanes import products
from tests.python.server.http.running_server import CHAT, Running
from tests.python.server.responses.checking import (
    ASKED,
    CLOSING,
    KEY,
    OPENING,
    OPTIONS,
    OWN,
    RESPONSES,
    create,
    deltas,
    streamed,
    text_of,
)


def chat(server: Running, messages: list[Any], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, **OWN, "temperature": 1.0, "max_tokens": 8, **more}
    answer = server.post(CHAT, body, **KEY)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_a_response_has_the_text_and_the_usage_of_a_chat(server: Running) -> None:
    response = create(server, "the sea", store=False).json
    expected = chat(server, [{"role": "user", "content": "the sea"}], store=False)
    assert text_of(response) == expected["choices"][0]["message"]["content"]
    assert (response["status"], response["object"]) == ("incomplete", "response")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["id"].startswith("resp_")
    assert response["output"][0]["id"].startswith("msg_")
    assert response["output"][0]["status"] == "incomplete"
    usage = response["usage"]
    assert usage["input_tokens"] == expected["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == 8
    assert usage["total_tokens"] == usage["input_tokens"] + 8
    assert response["sinkstream"]["finish_reason"] == "length"
    assert response["sinkstream"]["state"] == "new"


def test_a_stream_has_all_events_in_order(server: Running) -> None:
    whole = create(server, "the boat").json
    events = streamed(server, "the boat")
    kinds = [event["type"] for event in events]
    count = kinds.count("response.output_text.delta")
    assert count > 0
    assert kinds == [
        *OPENING,
        *["response.output_text.delta"] * count,
        *CLOSING,
        "response.incomplete",
    ]
    text = text_of(whole)
    assert deltas(events) == text
    assert events[4 + count]["text"] == text
    assert text_of(events[-1]["response"]) == text
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    names = {event["item_id"] for event in events if "item_id" in event}
    assert names == {events[-1]["response"]["output"][0]["id"]}
    assert events[0]["response"]["id"] == events[-1]["response"]["id"]


def test_a_reply_that_ends_by_itself_is_completed(server: Running) -> None:
    text = text_of(create(server, "the boat").json)
    stop = text[len(text) // 2 :][:3]
    events = streamed(server, "the boat", stop=stop)
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert response["completed_at"] >= response["created_at"]
    assert response["output"][0]["status"] == "completed"
    assert response["sinkstream"]["finish_reason"] == "stop_string"
    assert text_of(response) == text[: text.index(stop)]


@pytest.mark.parametrize("path", ["/responses", RESPONSES])
def test_the_request_is_repeated_in_the_response(server: Running, path: str) -> None:
    given = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "user": "me",
        "prompt_cache_key": "key",
        "top_p": 0.5,
        "truncation": "auto",
        "max_output_tokens": 3,
        "text": {"format": {"type": "text"}},
    }
    response = server.post(path, {"input": "hello", **ASKED, **given}, **KEY).json
    assert {name: response[name] for name in given} == given
    assert (response["store"], response["background"]) == (True, False)
    assert response["temperature"] == 1.0


def test_openais_client_creates_and_streams(client: OpenAI, server: Running) -> None:
    made = client.responses.create(model="any", input="the sea", **OPTIONS, extra_body=OWN)
    assert made.output_text == text_of(create(server, "the sea").json)
    with client.responses.stream(model="any", input="the sea", **OPTIONS, extra_body=OWN) as stream:
        text = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
    assert text == made.output_text
    events = client.responses.create(
        model="any", input="the sea", **OPTIONS, extra_body=OWN, stream=True
    )
    assert [event.type for event in events][-1] == "response.incomplete"


def test_openais_helper_returns_a_completed_response(client: OpenAI, server: Running) -> None:
    text = text_of(create(server, "the boat").json)
    own = {**OWN, "stop": text[4:7]}
    with client.responses.stream(
        model="any", input="the boat", **OPTIONS, extra_body=own
    ) as stream:
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == text[: text.index(text[4:7])]


def test_log_probabilities_are_those_of_a_chat(server: Running) -> None:
    messages = [{"role": "user", "content": "the sea"}]
    expected = chat(server, messages, store=False, logprobs=True, top_logprobs=2)
    content = expected["choices"][0]["logprobs"]["content"]
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "store": False}
    response = create(server, "the sea", **asked).json
    assert response["output"][0]["content"][0]["logprobs"] == content
    assert response["top_logprobs"] == 2
    events = streamed(server, "the sea", **asked)
    parts = [one for event in events if "delta" in event for one in event["logprobs"]]
    assert parts == content
    (plain,) = create(server, "the sea").json["output"][0]["content"]
    assert plain["logprobs"] == []


def test_the_bytes_of_tokens_are_the_text_and_control_tokens_have_none(server: Running) -> None:
    (end,) = server.model.end_token_ids
    asked = {"top_logprobs": 1, "store": False, "logit_bias": {str(end): 100}, "seed": 2}
    response = create(server, "the sea", **asked, max_output_tokens=3).json  # it goes on after ends
    assert text_of(response) == ""
    for entry in response["output"][0]["content"][0]["logprobs"]:
        assert (entry["token"], entry["bytes"]) == ("<|im_end|>", [])
    response = create(server, "the sea", store=False, top_logprobs=20, max_output_tokens=40).json
    entries = response["output"][0]["content"][0]["logprobs"]
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert raw.decode("utf-8", "replace") == text_of(response)
    assert server.model.tokenizer is not None
    added = server.model.tokenizer.get_added_tokens_decoder().values()
    control = {token.content for token in added if token.special}
    for other in (other for entry in entries for other in entry["top_logprobs"]):
        expected = "" if other["token"] in control else other["token"]
        assert bytes(other["bytes"]).decode("utf-8", "replace") == expected


GIVEN = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "It is"}]


@pytest.mark.parametrize("store", [True, False])
def test_the_assistants_last_message_is_continued(server: Running, store: bool) -> None:
    more: dict[str, Any] = {"continue_final_message": True, "store": store}
    expected = chat(server, GIVEN, continue_final_message=True, store=False)
    response = create(server, GIVEN, **more).json
    assert text_of(response) == expected["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]
    counted = server.post(
        f"{RESPONSES}/input_tokens", {"input": GIVEN, "continue_final_message": True}, **KEY
    )
    assert counted.json["input_tokens"] == expected["usage"]["prompt_tokens"]
    assert text_of(response) != text_of(create(server, GIVEN, store=False).json)


def test_a_continued_message_is_one_with_its_beginning(server: Running) -> None:
    first = create(server, "hello").json
    kept: dict[str, Any] = {"previous_response_id": first["id"], "continue_final_message": True}
    response = create(server, GIVEN, **kept).json
    name, text = response["id"], text_of(response)
    items = server.ask("GET", f"{RESPONSES}/{name}/input_items?order=asc", None, KEY).json["data"]
    assert [item["content"][0]["text"] for item in items] == ["the sea", "It is"]
    (turn,) = server.ask("GET", f"/v1/sessions/{name}/turns", None, KEY).json["data"]
    reply = turn["messages"][-1]
    assert reply["content"] == "It is" + text
    assert len(reply["offsets"]) == reply["end"] - reply["begin"] > 8
    more = create(server, "and?", previous_response_id=name).json
    history = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": text_of(first)},
        GIVEN[0],
        {"role": "assistant", "content": "It is" + text},
        {"role": "user", "content": "and?"},
    ]
    assert more["sinkstream"]["state"] == "resident"
    # Other instructions make the server write the history again.
    other = create(server, "and?", previous_response_id=name, instructions="x").json
    whole = [{"role": "system", "content": "x"}, *history]
    assert text_of(other) == text_of(create(server, whole, cache_salt="no cache").json)


def test_an_empty_message_may_be_continued(server: Running) -> None:
    given = [GIVEN[0], {"role": "assistant", "content": ""}]
    response = create(server, given, continue_final_message=True).json
    items = server.ask("GET", f"{RESPONSES}/{response['id']}/input_items", None, KEY).json["data"]
    assert [item["content"][0]["text"] for item in items] == ["the sea"]


ITEMS: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the sea"}]},
    {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "is wide", "annotations": []}]},
    {"role": "user", "content": [{"type": "input_text", "text": "and"},
                                 {"type": "input_text", "text": "then?"}]},
]  # fmt: skip


def test_items_are_read_as_the_messages_of_a_chat(server: Running) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the sea"},
        {"role": "assistant", "content": "is wide"},
        {"role": "user", "content": "and\nthen?"},
    ]
    expected = chat(server, messages, store=False)["choices"][0]["message"]["content"]
    assert text_of(create(server, ITEMS, store=False).json) == expected
    instructed = create(server, ITEMS[1:], instructions="Be brief.", store=False).json
    assert text_of(instructed) == expected


def test_tokens_are_counted_without_a_reply(server: Running, client: OpenAI) -> None:
    first = create(server, "the sea").json
    following = {"input": "go on", "previous_response_id": first["id"]}
    counted = client.responses.input_tokens.count(**following)
    assert (
        counted.input_tokens
        == create(server, "go on", previous_response_id=first["id"]).json["usage"]["input_tokens"]
    )
    counted = client.responses.input_tokens.count(input=ITEMS)
    assert counted.input_tokens == create(server, ITEMS).json["usage"]["input_tokens"]


def test_a_long_input_leaves_the_window_unless_that_is_refused(server: Running) -> None:
    capacity = server.model.capacity.tokens
    long = "and on " * 200
    response = create(server, long, truncation="auto").json
    assert response["usage"]["input_tokens"] > capacity
    assert response["sinkstream"]["evicted_tokens"] > 0
    body = {"input": long, **ASKED, "truncation": "disabled"}
    for _ in range(5):  # more than there are seats
        refused = server.post(RESPONSES, body, **KEY)
        assert (refused.status, refused.error["param"]) == (400, "input")
        assert refused.error["code"] == "context_length_exceeded"
    create(server, "short", truncation="disabled")


def bad(**fields: Any) -> dict[str, Any]:
    return {"input": "a", **fields}


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": kind, **fields}]}]}


BAD: list[tuple[Any, str | None]] = [
    ({}, "input"),
    ({"input": 1}, "input"),
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": ["a"]}, "input"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
    ({"input": [{"type": "input_text", "text": "a"}]}, "input[0].type"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ({"input": [{"type": "reasoning", "summary": 1}]}, "input[0].summary"),
    ({"input": [{"type": "reasoning", "content": [{}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    (bad(reasoning={"effort": 1}), "reasoning"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"type": 1}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    (part("input_image", image_url="http://a"), "input[0].content[0]"),
    (part("input_audio", data=""), "input[0].content[0]"),
    (part("input_file", file_id="f"), "input[0].content[0]"),
    (part("input_text"), "input[0].content[0].text"),
    (part("input_text", text=1), "input[0].content[0].text"),
    (part("nonsense"), "input[0].content[0]"),
    (bad(instructions=1), "instructions"),
    (bad(previous_response_id=1), "previous_response_id"),
    (bad(conversation="conv_1"), "conversation"),
    (bad(prompt={"id": "p"}), "prompt"),
    (bad(metadata={"a": 1}), "metadata"),
    (bad(metadata={"a" * 65: ""}), "metadata"),
    (bad(metadata={"a": "b" * 513}), "metadata"),
    (bad(metadata={str(i): "" for i in range(17)}), "metadata"),
    (bad(user="a" * 513), "user"),
    (bad(safety_identifier="a" * 513), "safety_identifier"),
    (bad(max_output_tokens=-2), "max_output_tokens"),
    (bad(max_output_tokens=65537), "max_output_tokens"),
    (bad(max_output_tokens=65537, stream=True), "max_output_tokens"),
    (bad(max_output_tokens="8"), "max_output_tokens"),
    (bad(temperature=-1), "temperature"),
    (bad(temperature="hot"), "temperature"),
    (bad(top_p=2), "top_p"),
    (bad(seed=1 << 64), "seed"),
    (bad(continue_final_message=True), "input"),
    (bad(continue_final_message="yes"), "continue_final_message"),
    (
        {
            "input": [
                {"role": "user", "content": "a"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            ],
            "continue_final_message": True,
        },
        "input",
    ),
    (bad(top_logprobs=-1), "top_logprobs"),
    (bad(top_logprobs=1000), "top_logprobs"),
    (bad(top_logprobs=20, max_output_tokens=60000), "top_logprobs"),
    (bad(truncation="some"), "truncation"),
    (bad(text={"format": {"type": "json_schema", "name": "n"}}), "text.format"),
    (
        bad(text={"format": {"type": "json_schema", "schema": {"type": "thing"}, "strict": True}}),
        "text.format",
    ),
    (bad(text={"format": {"type": "json_object"}}, grammar='start: "a"'), "text.format"),
    (bad(text={"format": {"type": "xml"}}), "text.format"),
    (bad(text={"format": "text"}), "text.format"),
    (bad(tools=[{"type": "web_search"}]), "tools"),
    (bad(tools=[{"type": "function"}]), "tools"),
    (bad(tool_choice="required"), "tool_choice"),
    (bad(include="all"), "include"),
    (bad(stream="yes"), "stream"),
    (bad(background=True, store=False), "background"),
    (bad(prompt_cache_key="x" * 513), "prompt_cache_key"),
]


@pytest.mark.parametrize(("body", "param", "stream"), products(BAD, [False, True], together=1))
def test_a_bad_request_is_refused(
    server: Running, body: Any, param: str | None, stream: bool
) -> None:
    answer = server.post(RESPONSES, {"stream": stream, **body}, **KEY)
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"a"', b'{"input": NaN}', b'{"input":"\xff"}'])
def test_a_body_must_be_an_object(server: Running, body: bytes) -> None:
    kind = {"Content-Type": "application/json", **KEY}
    answer = server.ask("POST", RESPONSES, body, kind)
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")


def test_openais_client_raises_for_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="`temperature` must be"):
        client.responses.create(model="any", input="a", temperature=-1)
