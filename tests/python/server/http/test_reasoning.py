"""A reasoning model's thoughts over HTTP, with and without a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.python.text.encoding import encode_chat

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import CHAT, HELLO, Running, events_of, running
from tests.python.text.reasoning_templates import KEPT, OPENED, THINK, WRITTEN, write_folder
from tests.python.text.vocabularies import special

TEMPLATES: dict[str, tuple[Any, ...]] = {
    "opened": (OPENED, *THINK),
    "written": (WRITTEN, *THINK),
    "kept": (KEPT, *special("[THINK]", "[/THINK]")),
}
Serve = Callable[..., Running]


@pytest.fixture(scope="module")
def serve(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Give servers by template, with a store or without."""
    found: dict[Any, Running] = {}
    with ExitStack() as stack:

        def server(template: str, *, stored: bool) -> Running:
            key = template, stored
            if key not in found:
                root = tmp_path_factory.mktemp("server")
                folder = write_folder(tiny_folder("llama"), root / "model", *TEMPLATES[template])
                store = str(root / "store") if stored else "none"
                found[key] = stack.enter_context(running(folder, store=store, sequences=3))
            return found[key]

        yield server


def body(server: Running, *texts: str, seed: int = 1, **more: Any) -> dict[str, Any]:
    """Return a request in whose reply every token is one of a few."""
    tokenizer = server.model.tokenizer
    assert tokenizer is not None
    ids = {i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids}
    bias = {str(i): 1e5 for i in ids}
    drawn = {"temperature": 100.0, "top_p": 1.0, "min_p": 0.0, "seed": seed, "max_tokens": 20}
    return {"messages": HELLO, "logit_bias": bias, "ignore_eos": True, **drawn, **more}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
def test_thoughts_come_apart_streamed_and_whole(serve: Serve, stored: bool, logprobs: bool) -> None:
    server = serve("opened", stored=stored)
    asked = body(server, "x", "q", "</think>", logprobs=logprobs)
    whole = server.post(CHAT, asked).json
    message, usage = whole["choices"][0]["message"], whole["usage"]
    thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
    assert message["reasoning_content"].strip("xq") == ""
    assert thoughts == len(message["reasoning_content"]) + 1
    assert message["content"]
    if logprobs:
        tokens = whole["choices"][0]["logprobs"]["content"]
        assert "".join(token["token"] for token in tokens) == message["content"]
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(server.post(CHAT, asked).body)
    assert events[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": thoughts}
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    shown = [next(iter(delta)) for delta in deltas[1:-1]]
    assert shown == sorted(shown, reverse=True)  # all thoughts, then all text
    for name in ("content", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name]


def test_a_thought_that_never_ends_leaves_no_content(serve: Serve) -> None:
    server = serve("opened", stored=False)
    choice = server.post(CHAT, body(server, "x")).json["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "x" * 20
    assert choice["finish_reason"] == "length"


def test_a_reply_without_a_thought_has_no_field_for_it(serve: Serve) -> None:
    server = serve("written", stored=False)
    answer = server.post(CHAT, body(server, "x")).json
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "x" * 20, "refusal": None
    }  # fmt: skip
    assert "completion_tokens_details" not in answer["usage"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_request_says_whether_to_think(serve: Serve, stored: bool) -> None:
    server = serve("written", stored=stored)

    def tokens(**more: Any) -> int:
        count: int = server.post(CHAT, body(server, "x", **more)).json["usage"]["prompt_tokens"]
        return count

    quiet = tokens(chat_template_kwargs={"enable_thinking": False})
    assert quiet > tokens() == tokens(chat_template_kwargs={"enable_thinking": True})
    assert tokens(reasoning_effort="none") == quiet
    assert tokens(reasoning_effort="low") == tokens()  # the template knows no efforts
    assert tokens(chat_template_kwargs={"other": [1]}) == tokens()
    asked = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}
    assert server.post("/tokenize", asked).json["count"] == quiet
    assert "<think>" in server.post("/apply-template", asked).json["prompt"]
    own = server.post(CHAT, body(server, "x", chat_template_kwargs={"messages": []}))
    assert (own.status, own.error["param"]) == (400, "chat_template_kwargs")
    for wrong in ({"enable_thinking": "no"}, {"reasoning_effort": 3}):
        answer = server.post(CHAT, body(server, "x", chat_template_kwargs=wrong))
        assert (answer.status, answer.error["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_thoughts_that_are_sent_back_are_read_as_the_template_says(
    serve: Serve, template: str
) -> None:
    messages: list[dict[str, str]] = []
    for i in range(3):
        messages += [
            {"role": "user", "content": f"the sea {template} {i}"},
            {"role": "assistant", "content": "and", "reasoning_content": "I think."},
        ]
    messages = messages[:-1]
    bare = [{**message} for message in messages]
    for message in bare:
        message.pop("reasoning_content", None)
    counts = set()
    for stored in (False, True):
        server = serve(template, stored=stored)
        usage = server.post(CHAT, body(server, "x", messages=messages)).json["usage"]
        counts.add(usage["prompt_tokens"])
    assert counts == {len(encode_chat(server.model._text, messages))}
    without = len(encode_chat(server.model._text, bare))
    assert (counts != {without}) == (template == "kept")


@pytest.mark.parametrize("template", ["opened", "written"])
def test_replies_are_the_same_with_a_store_and_without(serve: Serve, template: str) -> None:
    messages: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for turn in range(4):
        found = []
        for stored, said in messages.items():
            server = serve(template, stored=stored)
            said.append({"role": "user", "content": f"and so on {turn}"})
            tags = ("<think>", "</think>") if template == "written" else ("</think>",)
            answer = server.post(CHAT, body(server, "x", "q", *tags, messages=said, seed=turn)).json
            message = answer["choices"][0]["message"]
            said.append({"role": "assistant", "content": message["content"]})
            found.append((message, answer["usage"]["prompt_tokens"]))
        assert found[0] == found[1]
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_a_resent_history_with_or_without_thoughts_is_the_same_conversation(serve: Serve) -> None:
    server = serve("opened", stored=True)
    messages: list[dict[str, str]] = [{"role": "user", "content": "and so on"}]
    first = server.post(CHAT, body(server, "x", "</think>", messages=messages)).json
    reply = first["choices"][0]["message"]
    assert reply["reasoning_content"]
    kept = {name: reply[name] for name in ("role", "content", "reasoning_content")}
    bare = {name: reply[name] for name in ("role", "content")}
    for said in (kept, bare):
        again = [*messages, said, {"role": "user", "content": "and"}]
        usage = server.post(CHAT, body(server, "x", messages=again)).json["usage"]
        session, state = (usage["sinkstream"][name] for name in ("session", "state"))
        assert session == first["usage"]["sinkstream"]["session"]
        assert state != "new"


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("given", "is_text"), [("x", True), ("<think>x", False)])
def test_a_reply_is_continued_where_it_was(
    serve: Serve, stored: bool, given: str, is_text: bool
) -> None:
    """The generation prompt opens a thought; the template writes a message without one."""
    server = serve("opened", stored=stored)
    messages = [*HELLO, {"role": "assistant", "content": given}]
    asked = body(server, "q", messages=messages, continue_final_message=True)
    answer = server.post(CHAT, asked).json
    message = answer["choices"][0]["message"]
    assert message["content"] == ("q" * 20 if is_text else "")
    assert message.get("reasoning_content", "") == ("" if is_text else "q" * 20)
    counted = server.post("/tokenize", {"messages": messages, "continue_final_message": True}).json
    assert answer["usage"]["prompt_tokens"] == counted["count"]


@pytest.mark.parametrize("stored", [False, True])
def test_text_that_the_template_leaves_out_is_not_continued(serve: Serve, stored: bool) -> None:
    server = serve("opened", stored=stored)
    messages = [*HELLO, {"role": "assistant", "content": "x</think>"}]
    answer = server.post(CHAT, body(server, "q", messages=messages, continue_final_message=True))
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert "the template changes it or leaves it out" in answer.error["message"]
