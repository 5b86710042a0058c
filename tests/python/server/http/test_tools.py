"""Tools over HTTP: streamed and whole, with a store and without, and with OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

from tests.python.server.http.running_server import CHAT, HELLO, Running, events_of, running
from tests.python.text.tool_templates import TIME, TOOLS, WEATHER, function, write_tool_folder

jsonschema = pytest.importorskip("jsonschema")

Serve = Callable[..., Running]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
RANDOM: dict[str, Any] = {"temperature": 1.0, "min_p": 0.0, "seed": 3, "max_tokens": 1000}
CALLING = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required",
           "parallel_tool_calls": False, **RANDOM}  # fmt: skip


@pytest.fixture(scope="module")
def serve(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Give servers by the form of their model's calls, with a store or without."""
    found: dict[Any, Running] = {}
    with ExitStack() as stack:

        def server(name: str, *, stored: bool = False, tools: str = "native") -> Running:
            key = name, stored, tools
            if key not in found:
                root = tmp_path_factory.mktemp("server")
                folder = write_tool_folder(tiny_folder("llama"), root / "model", name)
                store = str(root / "store") if stored else "none"
                started = running(folder, store=store, sequences=3, tools=tools, sinks="4")
                found[key] = stack.enter_context(started)
            return found[key]

        yield server


def call_of(server: Running, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message of a reply that must make one call, and the usage."""
    answer = server.post(CHAT, {**CALLING, **more})
    assert answer.status == 200, answer.body
    choice = answer.json["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert answer.json["usage"]["sinkstream"]["finish_reason"] == "tool_calls"
    message = choice["message"]
    (call,) = message["tool_calls"]
    assert set(call) == {"id", "type", "function"}
    assert call["type"] == "function"
    check(call["function"])
    return message, answer.json["usage"]


def check(called: dict[str, str]) -> None:
    assert set(called) == {"name", "arguments"}
    jsonschema.validate(json.loads(called["arguments"]), SCHEMAS[called["name"]])


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", ["hermes", "mistral", "llama", "chatml", "strict"])
def test_a_call_is_streamed_as_it_is_whole(serve: Serve, name: str, stored: bool) -> None:
    server = serve(name, stored=stored)
    message, _ = call_of(server)
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert len(call["id"]) == (9 if name == "mistral" else 29)
    events = events_of(server.post(CHAT, {**CALLING, "stream": True}).body)
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [
        *[None] * (len(choices) - 1), "tool_calls",
    ]  # fmt: skip
    deltas = [choice["delta"] for choice in choices[1:-1]]
    assert all(set(delta) == {"tool_calls"} for delta in deltas)
    parts = [delta["tool_calls"] for delta in deltas]
    assert all(len(part) == 1 and part[0]["index"] == 0 for part in parts)
    first = parts[0][0]
    assert set(first) == {"index", "id", "type", "function"}
    assert first["function"] == {"name": call["function"]["name"], "arguments": ""}
    assert all(set(part[0]) == {"index", "function"} for part in parts[1:])
    arguments = "".join(part[0]["function"]["arguments"] for part in parts)
    assert arguments == call["function"]["arguments"]


def test_several_calls_and_choices(serve: Serve) -> None:
    server = serve("args")
    asked = {**CALLING, "parallel_tool_calls": True, "n": 3}
    choices = server.post(CHAT, asked).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for choice in choices:
        for call in choice["message"]["tool_calls"]:
            check(call["function"])
    assert max(len(choice["message"]["tool_calls"]) for choice in choices) > 1
    events = events_of(server.post(CHAT, {**asked, "stream": True}).body)
    for i, choice in enumerate(choices):
        found: dict[int, str] = {}
        for event in events:
            one = event["choices"][0]
            for part in one["delta"].get("tool_calls", []) if one["index"] == i else []:
                before = found.setdefault(part["index"], "")
                assert ("id" in part) == (before == "" and "name" in part["function"])
                found[part["index"]] = before + part["function"]["arguments"]
        expected = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        assert list(found.values()) == expected


def test_a_thought_comes_before_a_call(serve: Serve) -> None:
    server = serve("opened")
    tokenizer = server.model.tokenizer
    assert tokenizer is not None
    bias = {str(tokenizer.token_to_id("</think>")): 3}
    message, usage = call_of(server, logit_bias=bias, seed=5)
    assert message["reasoning_content"]
    assert message["content"] is None
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 1


def test_log_probabilities_are_of_text_only(serve: Serve) -> None:
    answer = serve("hermes").post(CHAT, {**CALLING, "logprobs": True})
    tokens = answer.json["choices"][0]["logprobs"]["content"]
    assert not any("}" in token["token"] for token in tokens)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", ["hermes", "llama", "chatml"])
def test_a_call_cut_by_max_tokens_ends_with_length_and_can_be_sent_back(
    serve: Serve, name: str, stored: bool
) -> None:
    server = serve(name, stored=stored)
    _, usage = call_of(server)
    cut = set()
    for less in (1, 8, 14, 18, 22):
        body = {**CALLING, "max_tokens": usage["completion_tokens"] - less}
        choice = server.post(CHAT, body).json["choices"][0]
        if less > 1:
            assert choice["finish_reason"] == "length"
        said = choice["message"]
        cut |= {call["function"]["arguments"] for call in said.get("tool_calls", [])}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "Late."}
                   for call in said.get("tool_calls", [])]  # fmt: skip
        following = [*HELLO, said, *results, {"role": "user", "content": "So?"}]
        more = {**CALLING, "messages": following, "tool_choice": "none", "max_tokens": 3}
        for tools in (TOOLS, TOOLS[:1]):
            answer = server.post(CHAT, {**more, "tools": tools})
            assert answer.status == 200, (said, answer.body)
    assert len(cut) > 1


@pytest.mark.parametrize("name", ["hermes", "thinking", "llama", "mistral", "chatml", "strict"])
def test_a_resent_history_with_calls_is_the_same_conversation(serve: Serve, name: str) -> None:
    server = serve(name, stored=True)
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"the sea of {name}"}]
    first, usage = call_of(server, messages=messages)
    (call,) = first["tool_calls"]
    session = usage["sinkstream"]["session"]
    # As OpenAI's client sends it back; as LangChain does; and without the empty content.
    again = json.dumps(json.loads(call["function"]["arguments"]))
    rewritten = {**call, "function": {**call["function"], "arguments": again}}
    for said in (
        first,
        {"role": "assistant", "content": "", "tool_calls": [rewritten]},
        {"role": "assistant", "tool_calls": [call]},
    ):
        result = {"role": "tool", "tool_call_id": call["id"], "content": "It is late."}
        following = [*messages, said, result]
        answer = server.post(
            CHAT, {**CALLING, "messages": following, "tool_choice": "none", "max_tokens": 5}
        )
        assert answer.status == 200, answer.body
        own = answer.json["usage"]
        assert own["sinkstream"]["session"] == session
        assert own["sinkstream"]["state"] != "new"
        if said is first:
            assert own["sinkstream"]["state"] == "resident"
            read = own["prompt_tokens"] - own["prompt_tokens_details"]["cached_tokens"]
            # The result, not the tools; Mistral's templates repeat these at each question.
            assert read < 80
    other = server.post(CHAT, {**CALLING, "messages": [*messages, first, result], "tools": [TIME]})
    assert other.json["usage"]["sinkstream"]["session"] != session


def test_a_history_with_calls_can_be_read_anew(serve: Serve) -> None:
    call = {"id": "abcdefghi", "type": "function",
            "function": {"name": "get_time", "arguments": '{"zone":1}'}}  # fmt: skip
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "Now."},
        {"role": "assistant", "content": "It is now."},
        {"role": "user", "content": "And there?"},
    ]
    for name in ("hermes", "llama", "thinking", "chatml", "strict"):
        counts = set()
        for stored in (False, True):
            answer = serve(name, stored=stored).post(CHAT, {**CALLING, "messages": messages})
            assert answer.status == 200, answer.body
            counts.add(answer.json["usage"]["prompt_tokens"])
        assert len(counts) == 1


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools", "must have different names"),
        ({"tools": [function("<x>")]}, "tools", "`name` must be 1 to 64"),
        ({"tools": [function("f", {"type": "string"})]}, "tools", 'schema of the type "object"'),
        ({"tools": [function("f", {"properties": {"a": {"type": "wrong"}}}, strict=True)]}, "tools",
         "Tool `f` of `tools` (at /properties/a) must be valid for llguidance"),
        ({"tools": [function("f", 3)]}, "tools", "`parameters` must be a JSON schema"),
        ({"tools": 3}, "tools", "`tools` must be an array"),
        ({"tools": [function(f"f{i}") for i in range(129)]}, "tools", "at most 128 tools"),
        ({"tools": []}, "tool_choice", "needs `tools`"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice",
         "must name one of `tools`"),
        ({"tool_choice": "any"}, "tool_choice", '"none", "required"'),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "must be true or false"),
        ({"tool_choice": "auto", "structured_outputs": {"regex": "a"}}, "structured_outputs",
         "must be None with `tools`"),
        ({"max_tokens": 70000, "stream": True}, "max_tokens", "at most 65536 with `tools`"),
    ],
)  # fmt: skip
def test_what_is_refused(serve: Serve, fields: dict[str, Any], param: str, sentence: str) -> None:
    answer = serve("hermes").post(CHAT, {**CALLING, **fields})
    assert answer.status == 400
    assert sentence in answer.error["message"]
    assert answer.error["param"] == param


def test_a_model_without_a_place_for_tools_may_still_answer_in_text(serve: Serve) -> None:
    server = serve("chatml")
    texts = []
    for choice in ("auto", "none"):
        body = {**CALLING, "tool_choice": choice, "max_tokens": 20}
        answer = server.post(CHAT, body)
        assert answer.status == 200, answer.body
        choices = answer.json["choices"]
        assert "tool_calls" not in choices[0]["message"]
        texts.append(choices[0]["message"]["content"])
    assert texts[0] == texts[1]
    assert texts[0]


def test_a_named_function_is_called_once(serve: Serve) -> None:
    server = serve("args")
    asked = {name: value for name, value in CALLING.items() if name != "parallel_tool_calls"}
    asked["tool_choice"] = {"type": "function", "function": {"name": "get_time"}}
    counts = {}
    for given in (None, True):
        body = (
            {**asked, "n": 3} if given is None else {**asked, "n": 3, "parallel_tool_calls": given}
        )
        choices = server.post(CHAT, body).json["choices"]
        counts[given] = [len(choice["message"]["tool_calls"]) for choice in choices]
    assert counts[None] == [1, 1, 1]
    assert max(counts[True]) > 1


def test_the_ways_of_tools(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    body = {**CALLING, "messages": HELLO}
    plain = {**RANDOM, "messages": HELLO, "max_tokens": 9}
    refused = serve("hermes", tools="refuse").post(CHAT, body)
    assert (refused.status, refused.error["param"]) == (400, "tools")
    assert "does not use tools" in refused.error["message"]
    assert serve("hermes", tools="refuse").post(CHAT, plain).status == 200
    server = serve("hermes", tools="ignore")
    ignored = server.post(CHAT, {**body, "max_tokens": 9})
    expected = server.post(CHAT, plain)
    assert ignored.json["choices"][0]["message"] == expected.json["choices"][0]["message"]
    assert ignored.json["usage"]["prompt_tokens"] == expected.json["usage"]["prompt_tokens"]
    generic, native = (serve("hermes", tools=way) for way in ("generic", "native"))
    call_of(generic)
    shown = [one.post("/apply-template", {"messages": HELLO, "tools": TOOLS}).json["prompt"]
             for one in (generic, native)]  # fmt: skip
    assert ["The functions are" in one for one in shown] == [True, False]


def test_tools_are_counted_and_shown(serve: Serve) -> None:
    server = serve("hermes")
    body = {"messages": HELLO, "tools": TOOLS}
    asked = server.post(CHAT, {**CALLING, "max_tokens": 1}).json["usage"]["prompt_tokens"]
    assert server.post("/chat/completions/input_tokens", body).json["input_tokens"] == asked
    assert server.post("/tokenize", body).json["count"] == asked
    assert '"get_weather"' in server.post("/apply-template", body).json["prompt"]


# ---- clients ---------------------------------------------------------------------------------


def test_openais_client(serve: Serve) -> None:
    openai = pytest.importorskip("openai")
    server = serve("hermes", stored=True)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    fields: dict[str, Any] = {
        "model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": "required",
        "parallel_tool_calls": False, "temperature": 1.0, "seed": 3, "max_tokens": 1000,
        "extra_body": {"min_p": 0.0},
    }  # fmt: skip
    message = client.chat.completions.create(**fields).choices[0].message
    check(message.tool_calls[0].function.model_dump())
    with client.chat.completions.stream(**fields) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [event.arguments for event in done] == [message.tool_calls[0].function.arguments]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == done[0].arguments
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Now."}
    answer = client.chat.completions.create(
        **{**fields, "messages": [*HELLO, message, result], "tool_choice": "none",
           "max_tokens": 5}
    )  # fmt: skip
    assert answer.usage.sinkstream["state"] != "new"


def test_langchain(serve: Serve) -> None:
    langchain = pytest.importorskip("langchain_openai")
    server = serve("hermes")
    chat = langchain.ChatOpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="tiny",
        temperature=1.0, seed=3, max_tokens=1000, extra_body={"min_p": 0.0},
    )  # fmt: skip
    bound = chat.bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False)
    (call,) = bound.invoke("the sea").tool_calls
    jsonschema.validate(call["args"], SCHEMAS[call["name"]])
    streamed = None
    for chunk in bound.stream("the sea"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [
        (call["name"], call["args"])
    ]
