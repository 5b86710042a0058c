"""Replies equal those of `Model.generate`; streams have fixed frames; who leaves is cancelled."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Running,
    events_of,
    read_all,
    running,
    unchunked,
)

OPTIONS: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0}


@pytest.mark.parametrize("stream", [False, True])
def test_choices_equal_the_python_api(server: Running, stream: bool) -> None:
    body = {"messages": HELLO, "n": 3, "seed": 7, "logprobs": True, "top_logprobs": 2, **OPTIONS}
    answer = server.post(CHAT, {**body, "stream": stream})
    assert answer.status == 200
    texts, logprobs = ["", "", ""], [[], [], []]  # type: ignore[var-annotated]
    for part in events_of(answer.body) if stream else [answer.json]:
        for choice in part["choices"]:
            said = choice["delta" if stream else "message"]
            texts[choice["index"]] += said.get("content", "")
            logprobs[choice["index"]] += (choice["logprobs"] or {}).get("content", [])
    for index in range(3):
        result = server.model.generate(HELLO, seed=7 + index, logprobs=2, **OPTIONS)
        assert texts[index] == result.text
        assert [entry["logprob"] for entry in logprobs[index]] == result.logprobs
        others = [tuple(o["logprob"] for o in entry["top_logprobs"]) for entry in logprobs[index]]
        assert others == [tuple(p for _, p in pairs) for pairs in result.alternatives]


def test_stop_bias_and_ids_equal_the_python_api(server: Running) -> None:
    ids = [5, 6, 7]
    free = server.model.generate(ids, seed=3, **OPTIONS)
    stop = free.text[4:6]
    expected = server.model.generate(ids, seed=3, stop=stop, logit_bias={9: -5}, **OPTIONS)
    body = {"prompt": ids, "seed": 3, "stop": [stop], "logit_bias": {"9": -5}, **OPTIONS}
    answer = server.post(COMPLETIONS, body).json
    assert answer["choices"][0]["text"] == expected.text
    assert answer["usage"]["completion_tokens"] == expected.stats.generated_tokens
    assert answer["usage"]["prompt_tokens"] == 3


def test_a_prompt_beyond_the_window_streams_through(server: Running) -> None:
    usage = server.post(COMPLETIONS, {"prompt": [5] * 500, "max_tokens": 3, "seed": 1}).json[
        "usage"
    ]
    assert usage["prompt_tokens"] == 500
    assert usage["sinkstream"]["evicted_tokens"] == 502 - 64


def test_the_frames_of_a_chat_byte_for_byte(server: Running) -> None:
    body = {"messages": HELLO, "seed": 1, "stream": True, "max_tokens": 1, "ignore_eos": True}
    with server.begin(CHAT, {**body, "stream_options": {"include_usage": True}}) as connection:
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += connection.recv(1 << 16)
    head, _, _ = answer.lower().partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
    assert b"cache-control: no-cache, no-transform\r\n" in head
    assert b"x-accel-buffering: no\r\n" in head
    assert b"content-length" not in head
    sent, is_whole = unchunked(answer)
    assert is_whole
    first = json.loads(sent.split(b"\n\n")[0][6:])
    same = {name: first[name] for name in ("id", "object", "created", "model")}
    assert (same["object"], same["model"]) == ("chat.completion.chunk", "tiny")
    prefix = (
        b"data: "
        + json.dumps(
            {**same, "system_fingerprint": first["system_fingerprint"]}, separators=(",", ":")
        ).encode()[:-1]
    )
    text = server.model.generate(HELLO, seed=1, max_tokens=1, ignore_eos=True).text
    frames = sent.split(b"\n\n")
    rest = b',"logprobs":null,"finish_reason":null}],"usage":null}'
    role = b'{"role":"assistant","content":""}'
    assert frames[0] == prefix + b',"choices":[{"index":0,"delta":' + role + rest
    said = b'{"content":' + json.dumps(text, ensure_ascii=False).encode() + b"}"
    assert frames[1] == prefix + b',"choices":[{"index":0,"delta":' + said + rest
    last = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}'
    assert frames[2].startswith(prefix + b',"choices":[' + last + b'],"usage":null,"sinkstream":{')
    assert frames[3].startswith(prefix + b',"choices":[],"usage":{"prompt_tokens":')
    assert frames[4:] == [b"data: [DONE]", b""]


def is_idle(server: Running) -> bool:
    stats = server.model.stats()
    names = ("open_replies", "waiting_replies", "http_requests")
    # The request for the metrics is one itself.
    return (
        stats["waiting"]
        == stats["running"]
        == 0
        == sum(server.metric(f"sinkstream_{name}") for name in names) - 1
    )


def test_who_leaves_is_cancelled_while_running_and_while_queued(server: Running) -> None:
    sockets = [server.begin(COMPLETIONS, ENDLESS) for _ in range(6)]
    server.wait_until(lambda: server.metric("sinkstream_waiting_replies") == 2, "queued")
    sockets.pop().close()
    server.wait_until(lambda: server.metric("sinkstream_waiting_replies") == 1, "left the queue")
    assert server.model.stats()["running"] == 4
    for connection in sockets:
        connection.close()
    server.wait_until(lambda: is_idle(server), "idle")


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_cancelled_while_the_prompt_is_read(server: Running, stream: bool) -> None:
    before = server.model.stats()["finished"]["cancelled"]
    body = {"prompt": [5] * 400_000, "max_tokens": 9, "stream": stream, "seed": 1}
    with server.begin(COMPLETIONS, body):
        server.wait_until(lambda: server.model.stats()["running"] == 1, "prefill")
    server.wait_until(lambda: is_idle(server), "idle")
    assert server.model.stats()["finished"]["cancelled"] == before + 1


def test_a_stream_that_the_server_ends_is_cut_after_an_error(
    tiny_folder: Callable[[str], Path],
) -> None:
    with running(tiny_folder("llama")) as server:
        connection = server.begin(COMPLETIONS, ENDLESS)
        assert b"data: " in connection.recv(1 << 16) + connection.recv(1 << 16)
    with connection:
        rest = read_all(connection)
    assert b'"code":"draining"' in rest
    assert b"[DONE]" not in rest
    assert not rest.endswith(b"0\r\n\r\n")


def test_comments_keep_a_silent_stream_alive(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama"), sequences=1, keepalive_s=0.05) as server:  # noqa: SIM117
        with server.begin(COMPLETIONS, ENDLESS):
            server.wait_until(lambda: server.model.stats()["running"] == 1, "running")
            with server.begin(COMPLETIONS, ENDLESS) as queued:
                answer = b""
                while answer.count(b": queued\n\n") < 2:
                    answer += queued.recv(4096)


def test_requests_beyond_the_queue_are_refused_and_no_other(server: Running) -> None:
    limit = 4 + 64

    async def ask() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        data = json.dumps(
            {"prompt": "the", "max_tokens": 40, "ignore_eos": True, "seed": 1}
        ).encode()
        head = "POST /completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        writer.write(data)
        answer = await reader.read()
        writer.close()
        status = int(answer.split(b" ")[1])
        assert status == 200 or b"retry-after: " in answer
        return status

    async def many() -> list[int]:
        return await asyncio.gather(*(ask() for _ in range(1000)))

    statuses = asyncio.run(many())
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= limit
    server.wait_until(lambda: is_idle(server), "idle")


def test_openais_client_is_served(server: Running) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    whole = client.chat.completions.create(
        model="any", messages=HELLO, max_completion_tokens=9, seed=2, temperature=1.0
    )
    parts = client.chat.completions.create(
        model="any", messages=HELLO, max_tokens=9, seed=2, temperature=1.0, stream=True
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.BadRequestError, match="`temperature` must be"):
        client.chat.completions.create(model="any", messages=HELLO, temperature=101)

    async def stream() -> str:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as other:
            parts = await other.chat.completions.create(
                model="any", messages=HELLO, max_tokens=9, seed=2, temperature=1.0, stream=True
            )
            return "".join([part.choices[0].delta.content or "" async for part in parts])

    assert asyncio.run(stream()) == text


def test_health_answers_while_a_long_prompt_is_read(server: Running) -> None:
    with server.begin(COMPLETIONS, {"prompt": [5] * 400_000, "max_tokens": 9, "stream": True}):
        server.wait_until(lambda: server.model.stats()["running"] == 1, "prefill")
        began = time.monotonic()
        assert server.ask("GET", "/health").status == 200
        assert time.monotonic() - began < 5
    server.wait_until(lambda: is_idle(server), "idle")


def test_texts_round_trip(server: Running) -> None:
    ids = server.post("/tokenize", {"content": "the sea"}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == "the sea"
    other = server.post("/tokenize", {"prompt": "the sea", "add_special_tokens": False}).json
    assert (other["tokens"], other["count"]) == (ids, len(ids))
    assert "the sea" in server.post("/apply-template", {"messages": HELLO}).json["prompt"]


def test_the_frames_of_a_completion(server: Running) -> None:
    body = {"prompt": "the sea", "seed": 1, "stream": True, "max_tokens": 4, "ignore_eos": True}
    events = events_of(server.post(COMPLETIONS, body).body)
    text = server.model.generate("the sea", seed=1, max_tokens=4, ignore_eos=True).text
    assert "".join(event["choices"][0]["text"] for event in events) == text
    names = {"id", "object", "created", "model", "system_fingerprint", "choices"}
    for event in events[:-1]:
        assert set(event) == names
        assert set(event["choices"][0]) == {"text", "index", "logprobs", "finish_reason"}
        assert event["choices"][0]["finish_reason"] is None
    assert {event["object"] for event in events} == {"text_completion"}
    assert len({event["id"] for event in events}) == 1
    assert set(events[-1]) == names | {"sinkstream"}
    last = {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
    assert events[-1]["choices"] == [last]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_is_in_every_chunk_if_it_is_asked_for(server: Running, path: str) -> None:
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "the sea"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**asked, **OPTIONS, "max_tokens": 40, "seed": 1, "stream": True}
    events = events_of(server.post(path, {**body, "stream_options": options}).body)
    last = events[-1]["usage"]
    assert events[-1]["choices"] == []
    assert last["completion_tokens"] == 40
    texts = [event for event in events if event["choices"] and event["usage"] is not None]
    counts = [event["usage"]["completion_tokens"] for event in texts]
    assert counts == sorted(counts)
    # The chunk that begins a chat's reply has a role and no text: it may come before any token.
    assert 0 <= counts[0] <= counts[-1] <= 40
    assert counts[-1] > 0
    for event in texts:
        usage = event["usage"]
        assert usage["prompt_tokens"] == last["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_echoed(server: Running, stream: bool) -> None:
    body = {"prompt": ["the sea", "a boat"], "n": 2, "seed": 1, "echo": True, **OPTIONS}
    answer = server.post(COMPLETIONS, {**body, "stream": stream})
    texts = [""] * 4
    for part in events_of(answer.body) if stream else [answer.json]:
        for choice in part["choices"]:
            texts[choice["index"]] += choice["text"]
    expected = [
        prompt + server.model.generate(prompt, seed=seed, **OPTIONS).text
        for prompt in ("the sea", "a boat")
        for seed in (1, 2)
    ]
    assert texts == expected


def test_ids_are_echoed_as_text(server: Running) -> None:
    ids = server.post("/tokenize", {"content": "the sea"}).json["tokens"]
    body = {"prompt": ids, "seed": 1, "echo": True, **OPTIONS}
    text = server.post(COMPLETIONS, body).json["choices"][0]["text"]
    assert text == "the sea" + server.model.generate(ids, seed=1, **OPTIONS).text


def test_the_assistants_last_message_is_continued(server: Running) -> None:
    given = [*HELLO, {"role": "assistant", "content": "It is"}]
    body = {"messages": given, "seed": 1, "continue_final_message": True, **OPTIONS}
    answer = server.post(CHAT, body).json
    rendered = server.post("/apply-template", {"messages": HELLO}).json["prompt"] + "It is"
    parsed = {"content": rendered, "parse_special": True}
    ids = server.post("/tokenize", parsed).json["tokens"]
    expected = server.model.generate(ids, seed=1, **OPTIONS)
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert answer["usage"]["prompt_tokens"] == len(ids)
    refused = server.post(CHAT, {**body, "messages": HELLO})
    assert (refused.status, refused.error["param"]) == (400, "messages")


def test_another_models_name_is_an_error_only_if_the_server_is_strict(
    server: Running, tiny_folder: Callable[[str], Path]
) -> None:
    chat = {"messages": HELLO, "max_tokens": 1, "seed": 1}
    assert server.post(CHAT, {**chat, "model": "gpt-3.5-turbo"}).json["model"] == "tiny"
    with running(tiny_folder("llama"), strict_model=True) as strict:
        for path, body in ((CHAT, chat), (COMPLETIONS, {"prompt": "a", "max_tokens": 1})):
            refused = strict.post(path, {**body, "model": "gpt-3.5-turbo"})
            assert (refused.status, refused.error["code"]) == (404, "model_not_found")
            for own in ({"model": "tiny"}, {}):
                assert strict.post(path, {**body, **own}).status == 200


def test_the_program_of_the_guide_streams_a_reply(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    guide = Path(__file__).parents[4] / "docs" / "guides" / "from_vllm.md"
    (program,) = re.findall(r"```python no-run\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    assert len(program.splitlines()) <= 10
    program = program.replace(":8000/", f":{server.port}/")
    # A model of random weights may end its reply before it has said anything.
    exec(program.replace("stream=True", 'stream=True, extra_body={"ignore_eos": True}'), {})
    assert capsys.readouterr().out
