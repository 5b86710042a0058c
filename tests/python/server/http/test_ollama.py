"""Ollama's API, with its Python client and without: the form is Ollama's, all else as for chats."""

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
from tests.python.text.tool_templates import TOOLS

jsonschema = pytest.importorskip("jsonschema")
ollama = pytest.importorskip("ollama")

Tooled = Callable[[str], Running]
RANDOM: dict[str, Any] = {"temperature": 1.0, "min_p": 0.0, "seed": 3}
SHORT: dict[str, Any] = {**RANDOM, "num_predict": 8}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
MANY = {"type": "array", "items": {"type": "boolean"}, "minItems": 30000}
ENDLESS: dict[str, Any] = {"format": MANY, "options": {"num_predict": 65536}}
"""A reply that cannot end soon."""
API = ("/api/chat", "/api/generate")


@pytest.fixture(scope="module")
def server(tooled: Tooled) -> Running:
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
    return ollama.Client(f"http://127.0.0.1:{server.port}", **more)


def lines_of(answer: Answered) -> list[Any]:
    """Return the records of a stream, the last of which must be the final one."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


def ask(server: Running, messages: list[Any], **more: Any) -> Answered:
    body = {"model": "tiny", "messages": messages, "stream": False, "options": SHORT, **more}
    answer = server.post("/api/chat", body)
    assert answer.status == 200, answer.body
    return answer


def read_for(record: dict[str, Any]) -> int:
    """Return how many tokens were read for a reply."""
    return int(record["prompt_eval_count"] - record["sinkstream"]["cached_tokens"])


# ---- replies -------------------------------------------------------------------------------------


def test_a_chat_says_what_a_chat_completion_says(server: Running) -> None:
    client = client_of(server)
    options = {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 5, "num_predict": 12}
    whole = client.chat("tiny", HELLO, options={**options, "repeat_penalty": 1.1})
    asked = {"messages": HELLO, "max_tokens": 12, "repetition_penalty": 1.1}
    del options["num_predict"]
    same = server.post(CHAT, {**asked, **options}).json
    (choice,) = same["choices"]
    assert whole.message.content == choice["message"]["content"]
    assert (whole.model, whole.done) == ("tiny:latest", True)
    assert whole.done_reason == choice["finish_reason"]
    options = {**options, "num_predict": 12, "repeat_penalty": 1.1}
    parts = [*client.chat("tiny", HELLO, options=options, stream=True)]
    assert "".join(part.message.content for part in parts) == whole.message.content
    for record in (whole, parts[-1]):
        assert record.eval_count == same["usage"]["completion_tokens"] > 1
        assert record.prompt_eval_count == same["usage"]["prompt_tokens"]
    for record in (whole, parts[-1]):
        spent = record.load_duration + record.prompt_eval_duration + record.eval_duration
        assert 0 < record.prompt_eval_duration < record.total_duration
        assert record.eval_duration > 0
        assert spent <= record.total_duration + 1


def test_the_asynchronous_client_is_served(server: Running) -> None:
    async def run() -> str:
        client = ollama.AsyncClient(f"http://127.0.0.1:{server.port}")
        stream = await client.chat("tiny", HELLO, options=SHORT, stream=True)
        return "".join([part.message.content async for part in stream])

    assert asyncio.run(run()) == ask(server, HELLO).json["message"]["content"]


def test_forty_turns_read_only_what_is_new(server: Running) -> None:
    """The client resends all of it; the window has 60 tokens."""
    client, history = client_of(server), list[Any]()
    reads = []
    for turn in range(40):
        history.append({"role": "user", "content": f"say {turn}"})
        before = server.metric("sinkstream_prompt_tokens_total")
        reply = client.chat("tiny", history, options={**SHORT, "seed": turn})
        reads.append(server.metric("sinkstream_prompt_tokens_total") - before)
        history.append(reply.message)
    assert reply.prompt_eval_count > 10 * 64
    assert max(reads[1:]) <= reads[0] + 10


def test_one_conversation_goes_on_in_three_protocols(server: Running) -> None:
    history: list[Any] = [{"role": "user", "content": "three of them"}]
    first = ask(server, history)
    session = first.headers["x-sinkstream-session"]
    for turn in range(6):
        history.append({"role": "assistant", "content": text_of(first)})
        history.append({"role": "user", "content": f"and {turn}"})
        body = {"messages": history, "max_tokens": 8}
        first = (
            server.post(CHAT, body)
            if turn % 3 == 0
            else server.post("/v1/messages", body)
            if turn % 3 == 1
            else ask(server, history)
        )
        assert first.headers["x-sinkstream-state"] == "resident"
        assert first.headers["x-sinkstream-session"] == session


def text_of(answer: Answered) -> str:
    """Return the text of a reply in any protocol."""
    body = answer.json
    if "choices" in body:
        return str(body["choices"][0]["message"]["content"])
    if "content" in body:
        return "".join(block["text"] for block in body["content"])
    return str(body["message"]["content"])


def test_a_last_message_of_the_assistant_is_continued(server: Running) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "It is"}]
    body = {"messages": begun, "continue_final_message": True, "max_tokens": 8, **RANDOM}
    same = server.post(CHAT, body).json["choices"][0]["message"]["content"]
    assert ask(server, begun).json["message"]["content"] == same


def test_log_probabilities(server: Running) -> None:
    (*parts, _) = lines_of(
        server.post(
            "/api/chat",
            {"messages": HELLO, "options": SHORT, "logprobs": True, "top_logprobs": 2},
        )
    )
    tokens = [token for part in parts for token in part["logprobs"]]
    assert len(tokens) == 8
    assert {len(token["top_logprobs"]) for token in tokens} == {2}
    whole = ask(server, HELLO, logprobs=True, top_logprobs=2).json
    assert whole["logprobs"] == tokens


def test_without_messages_the_model_is_loaded(server: Running) -> None:
    client = client_of(server)
    assert client.generate("tiny").done_reason == "load"
    assert client.chat("tiny", []).done_reason == "load"
    assert client.generate("tiny", keep_alive=0).done_reason == "unload"


# ---- completions ---------------------------------------------------------------------------------


def test_a_context_continues_its_conversation_far_past_the_window(server: Running) -> None:
    client = client_of(server)
    reply = client.generate("tiny", "the sea", system="Be short.", options=SHORT)
    whole = reply.response
    history = [{"role": "system", "content": "Be short."}, *HELLO]
    for turn in range(30):
        history += [{"role": "assistant", "content": whole}]
        history += [{"role": "user", "content": f"and {turn}"}]
        before = server.metric("sinkstream_prompt_tokens_total")
        reply = client.generate("tiny", f"and {turn}", context=reply.context, options=SHORT)
        assert server.metric("sinkstream_prompt_tokens_total") - before < 40
        whole = reply.response
    assert reply.prompt_eval_count > 10 * 64
    history += [{"role": "assistant", "content": whole}, {"role": "user", "content": "end"}]
    assert ask(server, history).headers["x-sinkstream-state"] == "resident"


def test_a_context_that_is_not_from_here_is_refused(server: Running) -> None:
    client = client_of(server)
    for context in ([1, 2, 3], [-1], [1 << 40], list(b"resp_0000")):
        with pytest.raises(ollama.ResponseError, match=r"`context` must be what") as error:
            client.generate("tiny", "on", context=context)
        assert error.value.status_code == 400


def test_raw_text_is_continued_as_it_is(server: Running) -> None:
    same = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 8, **RANDOM}).json
    client = client_of(server)
    whole = client.generate("tiny", "Once", raw=True, options=SHORT)
    assert whole.response == same["choices"][0]["text"]
    assert whole.context is None
    parts = client.generate("tiny", "Once", raw=True, options=SHORT, stream=True)
    assert "".join(part.response for part in parts) == whole.response


def test_formats_are_followed(server: Running) -> None:
    client = client_of(server)
    options = {**RANDOM, "num_predict": 200}
    for reply in (
        client.chat("tiny", HELLO, format=SCHEMA, options=options).message.content,
        client.generate("tiny", "a", format=SCHEMA, options=options).response,
    ):
        jsonschema.validate(json.loads(reply), SCHEMA)
    generated = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
    reply = client.chat("tiny", HELLO, format=generated, options=options).message.content
    assert json.loads(reply).keys() == {"n"}
    begun = client.chat("tiny", HELLO, format="json", options=options).message.content
    assert begun.lstrip().startswith("{")


# ---- tools and thoughts --------------------------------------------------------------------------


# A random model calls tools often if all that it may say instead is JSON.
CALLING: dict[str, Any] = {"tools": TOOLS, "format": SCHEMA}


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_calls_go_round_without_ids(tooled: Tooled, name: str) -> None:
    """Messages as the client has them lack the ids; the conversation is continued nevertheless."""
    server = tooled(name)
    history: list[Any] = [{"role": "user", "content": f"the time of {name}"}]
    counts = []
    for turn in range(3):
        for seed in range(40):
            options = {**RANDOM, "seed": seed, "num_predict": 600}
            said = ollama.Message(
                **ask(server, history, options=options, **CALLING).json["message"]
            )
            if said.tool_calls:
                break
        calls = said.tool_calls
        for call in calls:
            jsonschema.validate(call.function.arguments, SCHEMAS[call.function.name])
        history.append(said.model_dump(exclude_none=True))
        assert "id" not in history[-1]["tool_calls"][0]
        history += [
            {"role": "tool", "tool_name": call.function.name, "content": f"It is {turn}."}
            for call in calls
        ]
        answer = ask(server, history, **CALLING, options={**RANDOM, "num_predict": 3})
        assert answer.headers["x-sinkstream-state"] == "resident"
        counts.append(read_for(answer.json))
        history.append({"role": "user", "content": f"again, after {turn}"})
    assert max(counts) < 300  # the tools alone have 450


def test_a_call_is_streamed_when_it_is_complete(server: Running) -> None:
    for seed in range(40):
        options = {**RANDOM, "seed": seed, "num_predict": 600}
        asked = {"messages": HELLO, "options": options, **CALLING}
        lines = lines_of(server.post("/api/chat", asked))
        calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
        if len(calls) > 1:
            break
    whole = ask(server, HELLO, options=options, **CALLING).json
    assert whole["message"]["tool_calls"] == calls
    assert [call["function"]["index"] for call in calls] == [*range(len(calls))]
    assert [call["id"] for call in calls] == [f"call{i:05}" for i in range(len(calls))]
    assert len(calls) > 1


def test_thoughts_come_apart(thinking: Running) -> None:
    options = {**RANDOM, "num_predict": 24}
    reply = client_of(thinking).chat("tiny", HELLO, think=True, options=options)
    assert reply.message.thinking
    assert reply.message.content == ""
    parts = [*client_of(thinking).chat("tiny", HELLO, think=True, options=options, stream=True)]
    assert "".join(part.message.thinking or "" for part in parts) == reply.message.thinking
    whole = client_of(thinking).generate("tiny", "the sea", options=options)
    assert whole.thinking == reply.message.thinking
    sent_back = [*HELLO, reply.message.model_dump(exclude_none=True), *HELLO]
    assert ask(thinking, sent_back).json["done"]


# ---- models --------------------------------------------------------------------------------------


def test_the_model_is_described(server: Running, thinking: Running) -> None:
    client = client_of(server)
    (listed,) = client.list().models
    (loaded,) = client.ps().models
    shown = client.show(listed.model)
    assert listed.model == loaded.model == "tiny:latest"
    assert listed.details.family == shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 1 << 20
    assert loaded.context_length == 64
    assert shown.capabilities == ["completion", "tools"]
    assert "thinking" in client_of(thinking).show("tiny").capabilities
    assert "temperature 0.7" in shown.parameters
    version = server.ask("GET", "/api/version").json
    assert set(version) == {"version", "sinkstream"}
    assert client.chat(listed.model, HELLO, options=SHORT).done


@pytest.mark.parametrize("strict", [True])
def test_a_strict_server_knows_its_name_with_a_tag(
    tiny_folder: Callable[[str], Path], strict: bool
) -> None:
    with running(tiny_folder("llama"), strict_model=strict, api_keys=("right",)) as server:
        client = client_of(server, headers={"Authorization": "Bearer right"})
        for name in ("tiny", "tiny:latest"):
            assert client.chat(name, HELLO, options=SHORT).done
        for call in (client.chat, client.show):
            with pytest.raises(ollama.ResponseError, match="`model` must be") as error:
                call("other")
            assert error.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match='must be "Bearer"') as error:
            client_of(server).list()
        assert error.value.status_code == 401


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.pull("tiny"),
        lambda client: client.push("tiny"),
        lambda client: client.create("mine", from_="tiny"),
        lambda client: client.copy("tiny", "mine"),
        lambda client: client.delete("tiny"),
        lambda client: client.embed("tiny", "text"),
        lambda client: client.embeddings("tiny", "text"),
        lambda client: next(client.pull("tiny", stream=True)),
    ],
    ids=["pull", "push", "create", "copy", "delete", "embed", "embeddings", "streamed"],
)
def test_what_changes_models_is_refused(server: Running, call: Callable[[Any], Any]) -> None:
    with pytest.raises(ollama.ResponseError, match="is not supported, so there is no /api/"):
        call(client_of(server))


# ---- what is refused -----------------------------------------------------------------------------

CALLED = [{"function": {"name": "get_time", "arguments": {}}}]
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no object": ({"options": []}, "`options` must be an object"),
    "an option's type": ({"options": {"top_k": "many"}}, "`options.top_k` must be an integer"),
    "an option's range": ({"options": {"temperature": 900}}, "`options.temperature` must be in"),
    "a huge reply": ({"options": {"num_predict": 1 << 40}, "stream": False}, "num_predict` must"),
    "a huge integer": ({"options": {"seed": 1 << 70}}, "`options.seed` must be a"),
    "many stops": ({"options": {"stop": ["a"] * 65}}, "`options.stop` must have at most 64"),
    "a role": ({"messages": [{"role": "boss", "content": "a"}]}, "`role` must be one of"),
    "no role": ({"messages": [{"content": "a"}]}, "`role` must be one of"),
    "parts": ({"messages": [{"role": "user", "content": [{}]}]}, "must be a string"),
    "no message": ({"messages": ["a"]}, "`messages.0` must be an object"),
    "a thought": ({"messages": [{"role": "assistant", "content": "", "thinking": 5}]}, "thinking"),
    "images": ({"messages": [{"role": "user", "content": "a", "images": ["aa"]}]}, "not yet supp"),
    "calls": ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "must be an array"),
    "a call": ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "with a `name`"),
    "a format": ({"format": "xml"}, '`format` must be "json" or a JSON schema'),
    "a format's type": ({"format": 5}, "`format` must be"),
    "thinking": ({"think": "very much indeed"}, "`think` must be an effort"),
    "tools": ({"tools": [{"type": "function"}]}, "`function` must be a mapping"),
    "overflow": (
        {"truncate": False, "messages": [{"role": "user", "content": "a" * 500}]},
        "leave the window with `truncate`",
    ),
    "a stream": ({"stream": "yes"}, "`stream` must be true or false"),
    "images of a prompt": ({"prompt": "a", "images": ["aa"]}, "an image is not yet supported"),
    "a suffix": ({"prompt": "a", "suffix": "b"}, "text after the reply is not yet supported"),
    "raw": ({"prompt": "a", "raw": True, "system": "b"}, "`raw` must be false"),
    "a context": ({"prompt": "a", "context": "b"}, "`context` must be an array"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_gets_an_error_in_ollamas_form(server: Running, kind: str) -> None:
    body, rule = HOSTILE[kind]
    path = "/api/generate" if "prompt" in body else "/api/chat"
    answer = server.post(path, {"messages": HELLO, **body} if path == "/api/chat" else body)
    assert answer.status == 400, answer.body
    assert set(answer.json) == {"error"}
    assert rule in answer.json["error"]


@pytest.mark.parametrize("path", API)
def test_requests_that_are_not_read_get_it_as_well(server: Running, path: str) -> None:
    for body, status in ((b"{", 400), (b"[]", 400), (b'"a"', 400), (b"", 400)):
        answer = server.ask("POST", path, body)
        assert answer.status == status
        assert set(answer.json) == {"error"}
    plain = server.ask("POST", path, b"{}", {"Content-Type": "application/x-www-form-urlencoded"})
    assert (plain.status, set(plain.json)) == (415, {"error"})
    assert set(server.ask("GET", path).json) == {"error"}
    assert set(server.ask("GET", "/api/nothing").json) == {"error"}
    foreign = server.post(path, {}, Origin="https://elsewhere.example")
    assert (foreign.status, set(foreign.json)) == (403, {"error"})


def test_what_has_no_effect_is_named(server: Running) -> None:
    options = {**SHORT, "num_ctx": 1 << 20, "mirostat": 2, "num_gpu": 1}
    answer = ask(server, HELLO, options=options, template="{{ .Prompt }}")
    named = "template, options.mirostat, options.num_gpu, options.num_ctx"
    assert answer.headers["x-sinkstream-ignored"] == named
    assert answer.json["sinkstream"]["ignored_fields"] == named.split(", ")
    fits = ask(server, HELLO, options={**SHORT, "num_ctx": 64}, keep_alive="5m")
    assert "x-sinkstream-ignored" not in fits.headers


def test_a_client_that_leaves_ends_its_reply(server: Running) -> None:
    stream = client_of(server).chat("tiny", HELLO, stream=True, **ENDLESS)
    assert next(stream).message.content
    stream.close()
    server.wait_until(lambda: server.model.stats()["running"] == 0, "idle")


def test_a_server_that_ends_says_so_in_the_stream(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama")) as server:
        stream = client_of(server).chat("tiny", HELLO, stream=True, **ENDLESS)
        next(stream)
    with pytest.raises(ollama.ResponseError, match="shutting down"):
        for _ in stream:
            pass


def test_a_silent_stream_is_kept_alive(tiny_folder: Callable[[str], Path]) -> None:
    body = {"messages": HELLO, **ENDLESS}
    with running(tiny_folder("llama"), sequences=1, keepalive_s=0.05) as server:  # noqa: SIM117
        with server.begin("/api/chat", body):
            server.wait_until(lambda: server.model.stats()["running"] == 1, "running")
            with server.begin("/api/chat", body) as queued:
                answer = b""
                while answer.count(b"1\r\n \r\n") < 2:
                    answer += queued.recv(4096)


def test_a_request_that_is_sent_again_gets_the_same_reply(server: Running) -> None:
    body = {"messages": HELLO, "options": {"temperature": 1.0, "num_predict": 8}}
    answers = [
        server.post("/api/chat", body, **{"Idempotency-Key": "again"}).body for _ in range(2)
    ]
    assert answers[0] == answers[1]


# ---- what real clients send ----------------------------------------------------------------------


def test_open_webui_with_an_ollama_backend(server: Running) -> None:
    """It lists models, streams a chat, sends a call's result with its id, and asks for a title."""
    assert server.ask("GET", "/api/tags").json["models"][0]["model"] == "tiny:latest"
    assert server.ask("GET", "/api/ps").status == server.ask("GET", "/api/version").status == 200
    call = {"index": 0, "id": "call00000",
            "function": {"name": "get_time", "arguments": {"zone": 1}}}  # fmt: skip
    history = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "content": '{"time": "late"}'},
    ]
    body = {
        "model": "tiny:latest",
        "messages": history,
        "stream": True,
        "tools": TOOLS,
        "options": {"temperature": 0.8, "num_predict": 24, "num_ctx": 2048},
        "keep_alive": "5m",
    }
    lines = lines_of(server.post("/api/chat", body, Authorization="Bearer none"))
    text = "".join(line["message"]["content"] for line in lines)
    title = {"model": "tiny:latest", "stream": False, "options": {"num_predict": 16},
             "messages": [{"role": "user", "content": "### Task:\nGenerate a title."}]}  # fmt: skip
    assert server.post("/api/chat", title).json["message"]["role"] == "assistant"
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    if not calls:
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": "So?"}]
        again = server.post("/api/chat", {**body, "stream": False})
        assert again.headers["x-sinkstream-state"] != "new"


def test_continue_with_an_ollama_backend(server: Running) -> None:
    """It asks what the model is, chats with many options, and completes code without a template."""
    assert server.post("/api/show", {"name": "tiny"}).json["template"]
    options = {"temperature": 0.5, "top_p": 1, "num_predict": 16, "stop": ["<|im_end|>", "```"],
               "num_ctx": 8192, "num_thread": 8}  # fmt: skip
    chat = {"model": "tiny", "raw": False, "keep_alive": 1800, "options": options,
            "messages": [{"role": "user", "content": "Explain.\n```py\na = 1\n```\n"}]}  # fmt: skip
    assert lines_of(server.post("/api/chat", chat))
    fill = {"model": "tiny", "raw": True, "keep_alive": 1800, "options": options,
            "prompt": "<fim_prefix>def f():\n<fim_suffix>\n<fim_middle>"}  # fmt: skip
    assert lines_of(server.post("/api/generate", fill))
