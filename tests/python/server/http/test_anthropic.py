"""Anthropic's API, with its Python client and without: only the form differs from chats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

from tests.python.server.http.running_server import CHAT, HELLO, Answered, Running, running
from tests.python.text.reasoning_templates import OPENED, THINK, write_folder
from tests.python.text.tool_templates import TOOLS as FUNCTIONS

jsonschema = pytest.importorskip("jsonschema")
anthropic = pytest.importorskip("anthropic")

MESSAGES = "/v1/messages"
RANDOM: dict[str, Any] = {"temperature": 1.0}
SHORT: dict[str, Any] = {"max_tokens": 8, **RANDOM}
MANY = {"type": "array", "items": {"type": "boolean"}, "minItems": 30000}
ENDLESS: dict[str, Any] = {"output_config": {"format": {"type": "json_schema", "schema": MANY}}}
"""A reply that cannot end soon."""
TOOLS = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"].get("description", ""),
        "input_schema": tool["function"]["parameters"],
    }
    for tool in FUNCTIONS
]
SCHEMAS = {tool["name"]: tool["input_schema"] for tool in TOOLS}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
EPHEMERAL = {"type": "ephemeral"}


@pytest.fixture(scope="module")
def server(tooled: Callable[[str], Running]) -> Running:
    return tooled("hermes")


@pytest.fixture(scope="module")
def thinking(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Give a server of a model that begins with a thought."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    with running(write_folder(tiny_folder("llama"), folder, OPENED, *THINK)) as found:
        yield found


def client_of(server: Running, **more: Any) -> Any:
    settings = {"api_key": "none", "max_retries": 0, **more}
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", **settings)


def ask(server: Running, messages: list[Any], **more: Any) -> Answered:
    answer = server.post(MESSAGES, {"model": "tiny", "messages": messages, **SHORT, **more})
    assert answer.status == 200, answer.body
    return answer


def text_of(answer: Answered) -> str:
    return "".join(block["text"] for block in answer.json["content"])


def events_of(answer: Answered) -> list[Any]:
    """Return the data of a stream's events, each of which has its type as its name."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for event in answer.body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


# ---- replies -------------------------------------------------------------------------------------


def test_a_message_says_what_a_chat_completion_says(server: Running) -> None:
    greedy = {"temperature": 0, "max_tokens": 12}
    same = server.post(CHAT, {"messages": HELLO, **greedy}).json
    (choice,) = same["choices"]
    client, asked = client_of(server), {"model": "any", "messages": HELLO, "max_tokens": 12}
    whole = client.messages.create(**asked, extra_body={"temperature": 0})
    (block,) = whole.content
    assert (block.type, block.text) == ("text", choice["message"]["content"])
    assert (
        whole.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[choice["finish_reason"]]
    )
    assert whole.usage.output_tokens == same["usage"]["completion_tokens"]
    read = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert read == same["usage"]["prompt_tokens"]
    with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        texts = [*stream.text_stream]
        streamed = stream.get_final_message()
    assert "".join(texts) == block.text == streamed.content[0].text
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.id != whole.id


def test_the_asynchronous_client_is_served(server: Running) -> None:
    async def run() -> str:
        client = anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="a")
        asked = {"model": "tiny", "messages": HELLO, "max_tokens": 9}
        async with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
            return "".join([text async for text in stream.text_stream])

    whole = ask(server, HELLO, temperature=0, max_tokens=9)
    assert asyncio.run(run()) == text_of(whole)


def test_the_events_of_a_stream(server: Running) -> None:
    events = events_of(ask(server, HELLO, stream=True))
    assert [event["type"] for event in events][:2] == ["message_start", "content_block_start"]
    assert [event["type"] for event in events][-3:] == [
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert {event["index"] for event in events if "index" in event} == {0}
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert events[-2]["usage"]["sinkstream"]["state"] == "new"


def test_forty_turns_read_only_what_is_new(server: Running) -> None:
    """The client resends all of it; the window has 60 tokens."""
    client, history = client_of(server), list[Any]()
    usages = []
    for turn in range(40):
        block = {"type": "text", "text": f"say {turn}", "cache_control": EPHEMERAL}
        history.append({"role": "user", "content": [block]})
        asked = {"model": "tiny", "max_tokens": 8, "messages": history}
        reply = client.messages.create(**asked, extra_body={"temperature": 0})
        usages.append(reply.usage)
        history.append({"role": "assistant", "content": reply.content})
    assert usages[-1].input_tokens + usages[-1].cache_read_input_tokens > 8 * 64
    assert max(usage.input_tokens for usage in usages[1:]) <= usages[0].input_tokens + 30


@pytest.mark.parametrize("stops", [["e"], ["Q", "e", "q", "eat"], ["zz", "a", "e", "o", "t"]])
def test_the_stop_sequence_is_named(server: Running, stops: list[str]) -> None:
    found = set()
    for seed in range(12):
        messages = [{"role": "user", "content": f"the sea {seed}"}]
        asked = {"stop_sequences": stops, "max_tokens": 200}
        whole = ask(server, messages, **asked).json
        if whole["stop_reason"] == "stop_sequence":
            found.add(whole["stop_sequence"])
        text = "".join(block["text"] for block in whole["content"])
        assert not any(stop in text for stop in stops)
        *_, ending, _ = events_of(ask(server, messages, **asked, stream=True))
        if ending["delta"]["stop_reason"] == "stop_sequence":
            found.add(ending["delta"]["stop_sequence"])
    assert found <= set(stops)
    assert len(found) > (len(stops) > 3)


def test_a_last_message_of_the_assistant_is_continued(server: Running) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "It is"}]
    body = {"messages": begun, "continue_final_message": True, "max_tokens": 8, "temperature": 0}
    same = server.post(CHAT, body).json["choices"][0]["message"]["content"]
    reply = ask(server, begun, temperature=0)
    assert text_of(reply) == same
    both = [*begun, {"role": "assistant", "content": reply.json["content"]}, *HELLO]
    assert ask(server, both).headers["x-sinkstream-state"] == "resident"


def test_tokens_are_counted_as_they_are_read(server: Running) -> None:
    asked = {"messages": HELLO, "system": [{"type": "text", "text": "Be."}], "tools": TOOLS}
    counted = client_of(server).messages.count_tokens(model="tiny", **asked)
    usage = ask(server, **asked, tool_choice={"type": "none"}).json["usage"]
    assert counted.input_tokens == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_schema_is_followed(server: Running) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    whole = ask(server, HELLO, output_config=config, max_tokens=200)
    jsonschema.validate(json.loads(text_of(whole)), SCHEMA)


# ---- tools and thoughts --------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_time"}])
def test_calls_go_round(server: Running, choice: dict[str, str]) -> None:
    client = client_of(server)
    history: list[Any] = [{"role": "user", "content": f"the time, {choice['type']}"}]
    for turn in range(4):
        asked = {"model": "tiny", "max_tokens": 1000, "messages": history, "tools": TOOLS,
                 "tool_choice": {**choice, "disable_parallel_tool_use": True}}  # fmt: skip
        if turn % 2:
            with client.messages.stream(**asked, extra_body=RANDOM) as stream:
                reply = stream.get_final_message()
        else:
            reply = client.messages.create(**asked, extra_body=RANDOM)
        assert reply.stop_reason == "tool_use"
        (call,) = reply.content
        jsonschema.validate(call.input, SCHEMAS[call.name])
        assert choice.get("name") in (None, call.name)
        history.append({"role": "assistant", "content": reply.content})
        result = {"type": "tool_result", "tool_use_id": call.id, "is_error": turn == 1,
                  "content": [{"type": "text", "text": f"late {turn}"}]}  # fmt: skip
        history.append({"role": "user", "content": [result, {"type": "text", "text": "So?"}]})
        if turn:
            assert reply.usage.input_tokens < 120  # the tools alone have four times as many
    plain = [
        {**message, "content": [_plain(block) for block in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in history
    ]
    answer = ask(server, plain, tools=TOOLS, tool_choice={"type": "none"})
    assert answer.headers["x-sinkstream-state"] == "resident"
    assert answer.headers["x-sinkstream-ignored"] == "messages.content.is_error"


def _plain(block: Any) -> Any:
    return block if isinstance(block, dict) else block.model_dump(exclude_none=True)


def test_several_calls_are_blocks_of_their_own(server: Running) -> None:
    for _ in range(40):
        asked = {"tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 600}
        events = events_of(ask(server, HELLO, **asked, stream=True))
        starts = [event for event in events if event["type"] == "content_block_start"]
        assert [event["index"] for event in starts] == [*range(len(starts))]
        assert {event["content_block"]["type"] for event in starts} == {"tool_use"}
        if len(starts) > 1 and events[-2]["delta"]["stop_reason"] == "tool_use":
            break
    for event in starts:
        parts = [
            one["delta"]["partial_json"]
            for one in events
            if one["type"] == "content_block_delta" and one["index"] == event["index"]
        ]
        name = event["content_block"]["name"]
        jsonschema.validate(json.loads("".join(parts)), SCHEMAS[name])


@pytest.mark.parametrize("display", [None, "omitted"])
def test_thoughts_come_apart_and_go_back(thinking: Running, display: str | None) -> None:
    client = client_of(thinking)
    config = {"type": "enabled", "budget_tokens": 1024, "display": display}
    asked = {"model": "tiny", "max_tokens": 24, "messages": HELLO, "thinking": config}
    whole = client.messages.create(**asked, extra_body={"temperature": 0})
    with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        streamed = stream.get_final_message()
    for reply in (whole, streamed):
        (block,) = reply.content
        assert block.type == "thinking"
        assert bool(block.thinking) == (display is None)
        assert (block.thinking, block.signature) == (
            whole.content[0].thinking, whole.content[0].signature,
        )  # fmt: skip
        assert reply.usage.output_tokens_details.thinking_tokens == 24
    assert len(block.signature) > (16 if display else 4)
    back = [*HELLO, {"role": "assistant", "content": [_plain(block)]}, *HELLO]
    answer = ask(thinking, back, thinking=config)
    assert answer.headers["x-sinkstream-ignored"] == "thinking.budget_tokens"


# ---- access, and what is refused -----------------------------------------------------------------


def test_keys_and_versions(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama"), api_keys=("right",), strict_model=True) as server:
        asked = {"model": "tiny", "max_tokens": 4, "messages": HELLO}
        assert client_of(server, api_key="right").messages.create(**asked).role == "assistant"
        bearer = client_of(server, api_key=None, auth_token="right")
        assert bearer.messages.create(**asked).role == "assistant"
        with pytest.raises(anthropic.AuthenticationError) as error:
            client_of(server).messages.create(**asked)
        assert error.value.body["error"]["type"] == "authentication_error"
        assert error.value.request_id
        with pytest.raises(anthropic.NotFoundError) as error:
            client_of(server, api_key="right").messages.create(**{**asked, "model": "other"})
        assert error.value.body["error"]["type"] == "not_found_error"


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


def said(**fields: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": "assistant", "content": [fields]}, *HELLO]}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no limit": ({"max_tokens": None}, "`max_tokens` must be an integer"),
    "a huge limit": ({"max_tokens": 1 << 40}, "`max_tokens` must be at most 65536"),
    "no messages": ({"messages": []}, "`messages` must not be empty"),
    "a message": ({"messages": ["a"]}, "`messages.0` must be an object"),
    "a role": (
        {"messages": [{"role": "tool", "content": "a"}]},
        "`messages.0.role` must be one of",
    ),
    "a role's type": ({"messages": [{"role": 5, "content": "a"}]}, "`messages.0.role` must be one"),
    "no content": ({"messages": [{"role": "user"}]}, "must be a string or an array of blocks"),
    "content": ({"messages": [{"role": "user", "content": [5]}]}, "must be a string or an array"),
    "an image": (block(type="image", source={}), '"image" is not yet supported'),
    "a document": (block(type="document", source={}), '"document" is not yet supported'),
    "an unknown block": (block(type="noise"), "must be one that this server supports there"),
    "no type": (block(text="a"), "must be one that this server supports there, but is null"),
    "no text": (block(type="text"), "`messages.0.content.0.text` must be a string"),
    "a call of the user": (block(type="tool_use"), "must be one that this server supports there"),
    "a result without id": (block(type="tool_result", content="a"), "tool_use_id` must be a str"),
    "an image in a result": (
        block(type="tool_result", tool_use_id="a", content=[{"type": "image"}]),
        '"image" is not yet supported',
    ),
    "a call's input": (said(type="tool_use", id="a", name="b", input="{}"), "must be an object"),
    "a call's name": (said(type="tool_use", id="a", input={}), "name` must be a string"),
    "a thought": (said(type="thinking"), "thinking` must be a string"),
    "a system prompt": ({"system": 5}, "`system` must be a string or an array"),
    "a system image": ({"system": [{"type": "image"}]}, '"image" is not yet supported'),
    "many stops": ({"stop_sequences": ["a"] * 65}, "`stop_sequences` must have at most 64"),
    "a stop": ({"stop_sequences": "a"}, "`stop_sequences` must be an array"),
    "a temperature": ({"temperature": 500}, "`temperature` must be in"),
    "a tool's type": ({"tools": [{"type": "web_search_20250305"}]}, "is not yet supported"),
    "a tool's name": ({"tools": [{"name": "a b", "input_schema": {}}]}, "`name` must be 1 to 64"),
    "a tool's schema": ({"tools": [{"name": "a", "input_schema": 5}]}, "`input_schema` must be a"),
    "a choice": ({"tools": TOOLS, "tool_choice": {"type": "some"}}, "`tool_choice.type` must be"),
    "a chosen tool": (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "none"}},
        "`tool_choice` must name one of `tools`",
    ),
    "a format": ({"output_config": {"format": {"type": "xml"}}}, "must have the type"),
    "an effort": ({"output_config": {"effort": "a b"}}, "`output_config.effort` must be"),
    "thinking": ({"thinking": True}, "`thinking` must be an object"),
    "a stream": ({"stream": "yes"}, "`stream` must be true or false"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_gets_an_error_in_anthropics_form(server: Running, kind: str) -> None:
    body, rule = HOSTILE[kind]
    answer = server.post(MESSAGES, {"messages": HELLO, **SHORT, **body})
    assert answer.status == 400, answer.body
    assert set(answer.json) == {"type", "error"}
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert rule in answer.json["error"]["message"]
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens", "/messages"])
def test_requests_that_are_not_read_get_it_as_well(server: Running, path: str) -> None:
    for body, status in ((b"{", 400), (b"[]", 400), (b"", 400), (b"{}", 400)):
        answer = server.ask("POST", path, body)
        assert answer.status == status
        assert answer.json["error"]["type"] == "invalid_request_error"
    assert server.ask("GET", path).json["type"] == "error"
    assert server.ask("GET", f"{MESSAGES}/batches").json["error"]["type"] == "not_found_error"
    foreign = server.post(path, {}, Origin="https://elsewhere.example")
    assert (foreign.status, foreign.json["error"]["type"]) == (403, "permission_error")


def test_a_client_that_leaves_ends_its_reply(server: Running) -> None:
    asked = {"model": "tiny", "max_tokens": 65536, "messages": HELLO}
    with client_of(server).messages.stream(**asked, extra_body=ENDLESS) as stream:
        assert next(iter(stream.text_stream))
    server.wait_until(lambda: server.model.stats()["running"] == 0, "idle")


def test_a_server_that_ends_says_so_in_the_stream(tiny_folder: Callable[[str], Path]) -> None:
    asked = {"model": "tiny", "max_tokens": 65536, "messages": HELLO}
    with running(tiny_folder("llama")) as server:
        stream = client_of(server).messages.create(**asked, extra_body=ENDLESS, stream=True)
        next(stream)
    with pytest.raises(anthropic.APIStatusError, match="shutting down") as error:
        for _ in stream:
            pass
    assert error.value.body["error"]["type"] == "overloaded_error"


def test_a_silent_stream_is_kept_alive(tiny_folder: Callable[[str], Path]) -> None:
    body = {"messages": HELLO, "max_tokens": 65536, "stream": True, **ENDLESS}
    with running(tiny_folder("llama"), sequences=1, keepalive_s=0.05) as server:  # noqa: SIM117
        with server.begin(MESSAGES, body):
            server.wait_until(lambda: server.model.stats()["running"] == 1, "running")
            with server.begin(MESSAGES, body) as queued:
                answer = b""
                while answer.count(b'event: ping\ndata: {"type":"ping"}\n\n') < 2:
                    answer += queued.recv(4096)


# ---- what real clients send ----------------------------------------------------------------------


def test_a_coding_assistant(server: Running) -> None:
    """Many tools, a system prompt in blocks with marks for caches, and long results of tools.

    The first block is a header of Anthropic's service, which differs in each request.
    """
    tools = [
        {**TOOLS[i % len(TOOLS)], "name": f"tool_{i}", "cache_control": EPHEMERAL}
        for i in range(12)
    ]
    reminder = {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"}
    asked = {"type": "text", "text": "Mend the bug.", "cache_control": EPHEMERAL}
    history: list[Any] = [{"role": "user", "content": [reminder, asked]}]
    client = client_of(server, default_headers={"anthropic-beta": "a,b"})
    choices = {"type": "none"}, {"type": "any", "disable_parallel_tool_use": True}
    reads = []
    for turn in range(6):
        must_call = turn % 2 == 0
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={turn};"},
            {"type": "text", "text": "You are an agent.", "cache_control": EPHEMERAL},
            {"type": "text", "text": "Use the tools."},
        ]
        with client.messages.stream(
            model="tiny",
            max_tokens=1000 if must_call else 8,
            messages=history,
            system=system,
            tools=tools,
            tool_choice=choices[must_call],
            metadata={"user_id": "user_1"},
            thinking={"type": "adaptive"},
            extra_query={"beta": "true"},
            extra_body={"context_management": {"edits": []}, "temperature": 1.0},
        ) as stream:
            reply = stream.get_final_message()
            assert stream.response.headers["x-sinkstream-ignored"] == "context_management"
        reads.append(reply.usage.input_tokens)
        history.append({"role": "assistant", "content": reply.content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": [{"type": "text", "text": "line\n" * 60}],
                "cache_control": EPHEMERAL,
            }
            for block in reply.content
            if block.type == "tool_use"
        ]
        assert bool(results) == must_call
        history.append({"role": "user", "content": results or "Go on."})
    assert reads[0] > 1500
    assert max(reads[1:]) < 500
