"""gpt-oss's channels over HTTP: thoughts, text and calls, streamed and whole, with a store."""

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
from tests.python.text.tool_templates import TOOLS, write_tool_folder

RESPONSES = "/v1/responses"
Serve = Callable[[bool], Running]


@pytest.fixture(scope="module")
def serve(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Give servers with a store and without."""
    found: dict[bool, Running] = {}
    with ExitStack() as stack:

        def server(stored: bool) -> Running:
            if stored not in found:
                root = tmp_path_factory.mktemp("server")
                folder = write_tool_folder(tiny_folder("llama"), root / "model", "harmony")
                store = str(root / "store") if stored else "none"
                started = running(folder, store=store, sequences=3, window=4000, sinks="4")
                found[stored] = stack.enter_context(started)
            return found[stored]

        yield server


def drawn(server: Running, seed: int = 3, **more: Any) -> dict[str, Any]:
    """Return options with which free text is a few letters, and every message ends soon."""
    tokenizer = server.model.tokenizer
    assert tokenizer is not None
    names = ("x", "q", "<|end|>", "<|return|>")
    ids = [tokenizer.encode(name, add_special_tokens=False).ids[0] for name in names]
    biases = {str(token_id): 100 for token_id in ids}
    return {"logit_bias": biases, "temperature": 2.0, "min_p": 0.0, "seed": seed,
            "max_tokens": 600, **more}  # fmt: skip


def said(server: Running, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = server.post(CHAT, {"messages": messages, "tools": TOOLS, **more})
    assert answer.status == 200, answer.body
    choice: dict[str, Any] = answer.json["choices"][0]
    return choice


def joined(events: list[Any], field: str) -> str:
    deltas = (event["choices"][0]["delta"] for event in events if event["choices"])
    return "".join(delta.get(field) or "" for delta in deltas)


@pytest.mark.parametrize("stored", [False, True])
def test_a_thought_and_a_call_are_streamed_as_they_are_whole(serve: Serve, stored: bool) -> None:
    server = serve(stored)
    seen: set[bool] = set()
    for seed in range(8):
        asked = drawn(server, seed, tool_choice="required")
        choice = said(server, HELLO, **asked)
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = message["tool_calls"]
        names = {tool["function"]["name"] for tool in TOOLS}
        assert call["function"]["name"] in names
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert not message["content"]
        thought = message.get("reasoning_content") or ""
        assert "<|" not in thought
        assert "to=" not in thought
        seen.add(bool(thought))
        body = server.post(CHAT, {"messages": HELLO, "tools": TOOLS, **asked, "stream": True}).body
        events = events_of(body)
        assert joined(events, "reasoning_content") == thought
        assert joined(events, "content") == ""
        parts = [
            part
            for event in events
            for part in (event["choices"][0]["delta"].get("tool_calls") or [])
        ]
        assert parts[0]["function"]["name"] == call["function"]["name"]
        arguments = "".join(part["function"].get("arguments", "") for part in parts)
        assert arguments == call["function"]["arguments"]
    assert seen == {False, True}


def test_text_is_what_the_final_channel_has(serve: Serve) -> None:
    server = serve(False)
    texts = set()
    for seed in range(8):
        choice = said(server, HELLO, **drawn(server, seed, tool_choice="none"))
        message = choice["message"]
        assert "tool_calls" not in message
        assert set(message["content"]) <= set("xq\n")
        texts.add(message["content"])
    assert len(texts) > 2


def test_a_conversation_with_results_is_the_same_with_a_store_and_without(serve: Serve) -> None:
    """Once the user writes again, earlier turns are as the template writes them, without thoughts.

    Before that, a store has the call and its result as they were generated and read.
    """
    plain, stored = serve(False), serve(True)
    messages = [*HELLO]
    for turn in range(3):
        replies = []
        for server in (plain, stored):
            asked = drawn(server, 10 + turn, tool_choice="required")
            replies.append(said(server, messages, **asked)["message"])
        calls = [reply["tool_calls"][0]["function"] for reply in replies]
        assert calls[0] == calls[1]
        (call,) = replies[1]["tool_calls"]
        result = {"role": "tool", "content": "It is late.", "tool_call_id": call["id"]}
        reply = {key: replies[1][key] for key in ("role", "content", "tool_calls")}
        messages = [*messages, reply, result]
        asked = drawn(stored, 20 + turn, tool_choice="none")
        final = said(stored, messages, **asked)["message"]["content"]
        assert set(final) <= set("xq\n")
        messages += [{"role": "assistant", "content": final},
                     {"role": "user", "content": "And then?"}]  # fmt: skip


def test_a_response_continues_a_call_by_its_id(serve: Serve) -> None:
    server = serve(True)
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    asked = drawn(server, 5)
    asked["max_output_tokens"] = asked.pop("max_tokens")
    first = server.post(
        RESPONSES, {"input": "the sea", "tools": tools, "tool_choice": "required", **asked}
    )
    assert first.status == 200, first.body
    *thoughts, call = first.json["output"]
    assert call["type"] == "function_call"
    assert all(item["type"] == "reasoning" for item in thoughts)
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Late."}
    second = server.post(
        RESPONSES,
        {"input": [result], "previous_response_id": first.json["id"], "tools": tools,
         "tool_choice": "none", **asked},
    )  # fmt: skip
    assert second.status == 200, second.body
    kinds = [item["type"] for item in second.json["output"]]
    assert kinds[-1] == "message"
    assert set(kinds[:-1]) <= {"reasoning"}
