"""Function calls over the Responses API: items, events, results, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

from tests.python.server.http.running_server import CHAT, Running, running
from tests.python.server.responses.checking import (
    KEY,
    RESPONSES,
    checked,
    client_of,
    followed,
    sse,
    streamed,
    text_of,
)
from tests.python.text.tool_templates import TOOLS as CHAT_TOOLS
from tests.python.text.tool_templates import write_tool_folder

jsonschema = pytest.importorskip("jsonschema")

TOOLS = [{"type": "function", "strict": True, **tool["function"]} for tool in CHAT_TOOLS]
SCHEMAS = {tool["name"]: tool["parameters"] for tool in TOOLS}
CALLING: dict[str, Any] = {
    "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.0,
    "min_p": 0.0, "seed": 3, "ignore_eos": False, "max_output_tokens": 1000,
}  # fmt: skip
CALL_EVENTS = [
    "response.created", "response.in_progress", "response.output_item.added",
    "response.function_call_arguments.delta", "response.function_call_arguments.done",
    "response.output_item.done", "response.completed",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("tools")
    folder = write_tool_folder(tiny_folder("llama"), root / "model", "hermes")
    with running(folder, store=str(root / "store"), api_keys=("a",), sinks="4") as found:
        yield found


def create(server: Running, given: Any, **more: Any) -> dict[str, Any]:
    answer = server.post(RESPONSES, {"input": given, **CALLING, **more}, **KEY)
    assert answer.status == 200, answer.body
    return checked(answer.json)


def call_of(response: dict[str, Any]) -> dict[str, Any]:
    (item,) = response["output"]
    assert set(item) == {"id", "type", "status", "call_id", "name", "arguments"}
    assert (item["type"], item["status"]) == ("function_call", "completed")
    jsonschema.validate(json.loads(item["arguments"]), SCHEMAS[item["name"]])
    found: dict[str, Any] = item
    return found


def result_of(item: dict[str, Any], output: str = "It is late.") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": item["call_id"], "output": output}


def test_a_call_is_an_item(server: Running) -> None:
    response = create(server, "the sea")
    assert response["status"] == "completed"
    item = call_of(response)
    assert item["id"].startswith("fc_")
    assert item["call_id"].startswith("call_")
    assert response["tools"] == [{"description": None, **tool} for tool in TOOLS]
    assert (response["tool_choice"], response["parallel_tool_calls"]) == ("required", False)
    named = {"type": "function", "name": "get_time"}
    assert call_of(create(server, "the sea", tool_choice=named))["name"] == "get_time"
    assert call_of(create(server, "the sea", tool_choice={
        "type": "allowed_tools", "mode": "required",
        "tools": [{"type": "function", "name": "get_time"}],
    }))["name"] == "get_time"  # fmt: skip


def test_a_stream_has_the_events_of_a_call(server: Running) -> None:
    expected = call_of(create(server, "the sea"))
    events = streamed(server, "the sea", **CALLING)
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == CALL_EVENTS
    assert all(event["output_index"] == 0 for event in events if "output_index" in event)
    added, done = events[2]["item"], events[-2]["item"]
    assert (added["arguments"], added["status"]) == ("", "in_progress")
    assert done == call_of(events[-1]["response"])
    assert (done["name"], done["arguments"]) == (expected["name"], expected["arguments"])
    assert {event["item_id"] for event in events if "item_id" in event} == {done["id"]}
    written = "".join(event["delta"] for event in events if "delta" in event)
    assert written == done["arguments"] == events[-3]["arguments"]
    name = events[-1]["response"]["id"]
    assert followed(server, name) == events
    assert followed(server, name, 3) == events[4:]
    stored = server.ask("GET", f"{RESPONSES}/{name}", None, KEY).json
    assert stored["output"] == [done]


def test_text_without_a_call_is_a_message(server: Running) -> None:
    more = {"tool_choice": "none", "max_output_tokens": 8, "ignore_eos": True}
    events = streamed(server, "the sea", **{**CALLING, **more})
    kinds = [event["type"] for event in events]
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert kinds[-1] == "response.incomplete"
    assert text_of(events[-1]["response"]) == "".join(event.get("delta", "") for event in events)


def test_a_result_continues_the_response(server: Running) -> None:
    first = create(server, "the boat")
    item = call_of(first)
    more = {"tool_choice": "none", "max_output_tokens": 6}
    by_name = create(server, [result_of(item)], previous_response_id=first["id"], **more)
    assert by_name["sinkstream"]["state"] == "resident"
    assert by_name["sinkstream"]["session"] == first["sinkstream"]["session"]
    usage = by_name["usage"]
    assert usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] < 80
    whole = [{"role": "user", "content": "the boat"}, item, result_of(item)]
    resent = create(server, whole, **more)
    assert resent["sinkstream"]["session"] == first["sinkstream"]["session"]
    assert resent["output"][0]["content"] == by_name["output"][0]["content"]
    items = server.ask("GET", f"{RESPONSES}/{by_name['id']}/input_items?order=asc", None, KEY).json[
        "data"
    ]
    assert [(one["type"], one["output"]) for one in items] == [
        ("function_call_output", "It is late.")
    ]


def test_other_tools_read_the_conversation_again(server: Running) -> None:
    first = create(server, "the shore")
    item = call_of(first)
    again = create(
        server, [result_of(item)], previous_response_id=first["id"], tools=TOOLS[:1],
    )  # fmt: skip
    assert again["sinkstream"]["session"] != first["sinkstream"]["session"]
    assert call_of(again)["name"] == "get_weather"
    whole = [{"role": "user", "content": "the shore"}, item, result_of(item)]
    assert (
        again["usage"]["input_tokens"]
        == create(server, whole, tools=TOOLS[:1])["usage"]["input_tokens"]
    )
    body = {"input": whole, "tools": TOOLS[:1]}
    counted = server.post(f"{RESPONSES}/input_tokens", body, **KEY).json["input_tokens"]
    assert counted == again["usage"]["input_tokens"]
    unstored = create(server, "the shore", store=False)
    body = {"input": [result_of(call_of(unstored))], **CALLING, "store": False,
            "tools": TOOLS[:1], "previous_response_id": unstored["id"]}  # fmt: skip
    answer = server.post(RESPONSES, body, **KEY)
    assert (answer.status, answer.error["param"]) == (400, "tools")


def test_a_response_with_other_tools_reads_the_calls_of_a_chat(server: Running) -> None:
    asked = {"messages": [{"role": "user", "content": "the lake"}], "tools": CHAT_TOOLS,
             "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.0,
             "min_p": 0.0, "seed": 3, "max_tokens": 1000}  # fmt: skip
    chat = server.post(CHAT, asked, **KEY).json
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    item = {"type": "function_call", "call_id": call["id"], **call["function"]}
    node = chat["usage"]["sinkstream"]["node"]
    again = create(server, [result_of(item)], previous_response_id=node, tools=TOOLS[:1])
    whole = [{"role": "user", "content": "the lake"}, item, result_of(item)]
    expected = create(server, whole, tools=TOOLS[:1])
    assert again["usage"]["input_tokens"] == expected["usage"]["input_tokens"]


def test_calls_survive_a_restart(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_tool_folder(tiny_folder("llama"), tmp_path / "model", "args")
    settings: dict[str, Any] = {"store": str(tmp_path / "store"), "api_keys": ("a",), "sinks": "4"}
    with running(folder, **settings) as server:
        body = {"input": "the sea", **CALLING, "parallel_tool_calls": True, "stream": True}
        events = sse(server.post(RESPONSES, body, **KEY).body)
    response = events[-1]["response"]
    assert len(response["output"]) > 1
    with running(folder, **settings) as server:
        name = response["id"]
        assert server.ask("GET", f"{RESPONSES}/{name}", None, KEY).json == response
        assert followed(server, name) == events


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", "not yet supported"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "`name` must be 1 to 64"),
        ({"tools": [{"type": "function"}]}, "tools", "`name` must be 1 to 64"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools", "must have different names"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "must name one of"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", 'must have the type "function"'),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, fields: Any, param: str, sentence: str) -> None:
    answer = server.post(RESPONSES, {"input": "the sea", **CALLING, **fields}, **KEY)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert sentence in answer.error["message"]


def test_openais_client(server: Running) -> None:
    own = {"seed": 3, "min_p": 0.0}
    fields: dict[str, Any] = {
        "model": "tiny", "input": "the sea", "tools": TOOLS, "tool_choice": "required",
        "parallel_tool_calls": False, "temperature": 1.0, "max_output_tokens": 1000,
        "extra_body": own,
    }  # fmt: skip
    with client_of(server) as client:
        made = client.responses.create(**fields)
        call = made.output[0]
        assert call.type == "function_call"
        with client.responses.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        assert final.output[0].arguments == call.arguments
        answer = client.responses.create(
            **{**fields, "input": [result_of(call.model_dump())], "tool_choice": "none",
               "max_output_tokens": 4},
            previous_response_id=made.id,
        )  # fmt: skip
        assert answer.output[0].type == "message"


def test_a_thought_comes_before_a_call(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_tool_folder(tiny_folder("llama"), tmp_path / "model", "opened")
    with running(folder, store=str(tmp_path / "store"), api_keys=("a",), sinks="4") as server:
        tokenizer = server.model.tokenizer
        assert tokenizer is not None
        bias = {str(tokenizer.token_to_id("</think>")): 3}
        events = streamed(server, "the sea", **{**CALLING, "logit_bias": bias, "seed": 5})
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
        added = [event for event in events if event["type"] == "response.output_item.added"]
        assert [event["output_index"] for event in added] == [0, 1]
        done = [event for event in events if event["type"] == "response.output_item.done"]
        assert [event["item"] for event in done] == response["output"]
        assert followed(server, response["id"]) == events
        result = result_of(response["output"][1])
        more = {"tool_choice": "none", "max_output_tokens": 4, "logit_bias": bias}
        by_name = create(server, [result], previous_response_id=response["id"], **more)
        assert by_name["sinkstream"]["state"] == "resident"
        whole = [{"role": "user", "content": "the sea"}, *response["output"], result]
        resent = create(server, whole, **more)
        assert resent["sinkstream"]["session"] == response["sinkstream"]["session"]
