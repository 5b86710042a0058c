"""Replies of a tiny model with random text call tools in each form, and always validly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument, ToolCall
from sinkstream.model import host_of
from sinkstream.request.tools import Tools, check_tools
from sinkstream.streams.events import Token
from tests.python.text.encoding import encode_chat
from tests.python.text.tool_templates import (
    FORMATS,
    TIME,
    TOOLS,
    WEATHER,
    WITHOUT_TOOLS,
    write_tool_folder,
)

jsonschema = pytest.importorskip("jsonschema")
HELLO = [{"role": "user", "content": "Hi"}]
RANDOM: dict[str, Any] = {"temperature": 1.0, "max_tokens": 1500, "min_p": 0.0}
CALL = "<function=get_time>{}</function>"
GiveModel = Callable[[str], sinkstream.Model]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.fixture(scope="module")
def models(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GiveModel]:
    """Give models whose templates have the forms of FORMATS."""
    found: dict[str, sinkstream.Model] = {}
    with ExitStack() as stack:

        def give(name: str) -> sinkstream.Model:
            if name not in found:
                folder = tmp_path_factory.mktemp("tools") / name
                write_tool_folder(tiny_folder("llama"), folder, name)
                loaded = sinkstream.load(folder, sinks=4, window=1000, threads=1, max_sequences=4)
                found[name] = stack.enter_context(loaded)
            return found[name]

        yield give


def check(calls: list[ToolCall]) -> None:
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_are_valid(models: GiveModel, name: str) -> None:
    model = models(name)
    names = set()
    bias = {}
    if name == "opened":  # its thought ends at once
        tokenizer = model.tokenizer
        assert tokenizer is not None
        bias = {tokenizer.token_to_id("</think>"): 50.0}
    for seed in range(6):
        reply = model.generate(
            HELLO, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed,
            logit_bias=bias, **RANDOM,
        )  # fmt: skip
        assert reply.finish_reason == "stop"
        assert reply.text == ""
        assert len(reply.tool_calls) == 1
        check(reply.tool_calls)
        names.add(reply.tool_calls[0].name)
    assert names == set(SCHEMAS)
    named = {"type": "function", "function": {"name": "get_time"}}
    reply = model.generate(HELLO, tools=TOOLS, tool_choice=named, seed=1, logit_bias=bias, **RANDOM)
    assert {call.name for call in reply.tool_calls} == {"get_time"}


def trigger_of(model: sinkstream.Model) -> int:
    """Return the token with which calls begin."""
    form = host_of(model).formats.calls(None, Tools(()))
    tokenizer = model.tokenizer
    assert tokenizer is not None
    found = form.token_ids.get(form.trigger)
    return int(tokenizer.token_to_id(form.trigger)) if found is None else found


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"hermes"}))
def test_a_model_that_begins_a_call_must_complete_it(models: GiveModel, name: str) -> None:
    model = models(name)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    trigger = trigger_of(model)
    texts, calls = [], 0
    for seed in range(9):
        # A call is the more likely to begin the more seeds have passed.
        bias = {trigger: 4.0 + seed}
        if name == "opened":
            bias[tokenizer.token_to_id("</think>")] = 9.0
        reply = model.generate(
            HELLO, tools=TOOLS, seed=seed, logit_bias=bias, parallel_tool_calls=False, **RANDOM
        )
        if reply.finish_reason == "stop":
            check(reply.tool_calls)
            calls += len(reply.tool_calls)
            texts.append(reply.text)
    assert calls > 0
    assert any(texts) or name == "llama"


def test_a_reply_may_make_several_calls(models: GiveModel) -> None:
    counts = set()
    for seed in range(6):
        reply = models("args").generate(
            HELLO, tools=TOOLS, tool_choice="required", seed=seed, **RANDOM
        )
        check(reply.tool_calls)
        counts.add(len(reply.tool_calls))
    assert max(counts) > 1


def test_a_reply_without_a_call_is_what_it_would_be_without_a_grammar(models: GiveModel) -> None:
    model = models("hermes")
    tools = check_tools(TOOLS)
    assert tools is not None
    ids = encode_chat(model._text, HELLO, tools=tools.definitions)
    table = host_of(model).table
    assert table is not None
    # The grammar has no control tokens, no tokens without text and no broken characters, which only
    # random text has.
    options: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 40,
        "logit_bias": {
            i: -math.inf
            for i, piece in enumerate(table.pieces)
            if i in table.special or not piece or not piece.isascii()
        },
    }
    free = model.generate(ids, **options)
    for choice in ("auto", "none"):
        reply = model.generate(HELLO, tools=TOOLS, tool_choice=choice, **options)
        assert reply.tool_calls == []
        assert (reply.token_ids, reply.text) == (free.token_ids, free.text)


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [("reasoning", "[THINK]", "[/THINK]"), ("thinking", "<think>", "</think>")],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_thought_comes_before_calls(
    models: GiveModel, name: str, begin: str, end: str, choice: str
) -> None:
    model = models(name)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    thoughts = 0
    for seed in range(4):
        bias = {tokenizer.token_to_id(begin): 9.0, tokenizer.token_to_id(end): 7.0,
                trigger_of(model): 9.0}  # fmt: skip
        reply = model.generate(
            HELLO, tools=TOOLS, tool_choice=choice, seed=seed, logit_bias=bias,
            parallel_tool_calls=False, **RANDOM,
        )  # fmt: skip
        if reply.finish_reason == "stop":
            check(reply.tool_calls)
            thoughts += bool(reply.thought) and len(reply.tool_calls)
    assert thoughts > 0


def test_none_never_begins_a_call(models: GiveModel) -> None:
    for name in ("function", "mistral", "llama", "thinking"):
        model = models(name)
        for seed in range(3):
            reply = model.generate(
                HELLO, tools=TOOLS, tool_choice="none", seed=seed, temperature=1.0, max_tokens=40,
                logit_bias={trigger_of(model): 30.0},
            )  # fmt: skip
            assert reply.tool_calls == []
            where = reply.token_ids[:1] if name == "llama" else reply.token_ids
            assert trigger_of(model) not in where


def test_stop_strings_do_not_match_in_calls_that_must_be_made(models: GiveModel) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, **RANDOM}
    for name in ("hermes", "args", "chatml"):
        plain = models(name).generate(HELLO, seed=3, **asked)
        stopped = models(name).generate(HELLO, seed=3, stop=["}", '"', "e", "{"], **asked)
        assert stopped.token_ids == plain.token_ids
        assert stopped.finish_reason == "stop"


@pytest.mark.parametrize("name", ["function", "args", "mistral", "llama", "thinking", "reasoning"])
def test_stop_strings_do_not_match_in_calls_that_may_be_made(models: GiveModel, name: str) -> None:
    model = models(name)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    tags = {"reasoning": ("[THINK]", "[/THINK]"), "thinking": ("<think>", "</think>")}
    bias = {tokenizer.token_to_id(tag): 8.0 for tag in tags.get(name, ())}
    asked = {"tools": TOOLS, "parallel_tool_calls": False, "logit_bias": bias, **RANDOM}
    stops = ['"', "}", "n", "y", "[TOOL_CALLS]"]
    calls, texts = 0, 0
    for seed in range(9):
        bias[trigger_of(model)] = float(seed)  # then text before a call is the rarer
        plain = model.generate(HELLO, seed=seed, **asked)
        if plain.finish_reason != "stop":
            continue
        stopped = model.generate(HELLO, seed=seed, stop=stops, **asked)
        if any(stop in plain.thought + plain.text for stop in stops):
            assert len(stopped.token_ids) < len(plain.token_ids)
            assert stopped.tool_calls == []
            texts += 1
        else:
            assert stopped.token_ids == plain.token_ids
            assert [call.name for call in stopped.tool_calls] == [c.name for c in plain.tool_calls]
            calls += len(stopped.tool_calls)
    assert calls > 0
    assert texts > 0 or name == "llama"


def test_a_stream_tells_calls_while_they_are_written(models: GiveModel) -> None:
    stream = models("hermes").stream(
        HELLO, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=2, **RANDOM
    )
    kinds, seen = [], []
    for event in stream.events():
        if isinstance(event, Token):
            kinds.append(event.kind)
        seen.append([(call.name, call.arguments) for call in stream.tool_calls])
    assert "tool_call" in kinds
    assert seen[0] == []
    (call,) = stream.tool_calls
    assert seen[-1] == [(call.name, call.arguments)]
    assert stream.result().tool_calls == [call]


def test_other_replies_are_not_affected_by_a_reply_with_tools(models: GiveModel) -> None:
    model = models("hermes")
    alone = model.generate(HELLO, seed=3, temperature=1.0, max_tokens=60)
    with model.stream(HELLO, tools=TOOLS, tool_choice="required", seed=1, **RANDOM) as stream:
        alongside = model.generate(HELLO, seed=3, temperature=1.0, max_tokens=60)
        stream.result()
    assert alongside.token_ids == alone.token_ids


def test_a_schema_is_for_the_text_of_a_reply_without_calls(models: GiveModel) -> None:
    model = models("function")
    schema = {"type": "object", "properties": {"a": {"const": CALL}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    tokenizer = model.tokenizer
    assert tokenizer is not None
    texts, calls = 0, 0
    for seed in range(12):
        reply = model.generate(HELLO, tools=TOOLS, schema=schema, seed=seed, **RANDOM)
        if reply.tool_calls:
            assert reply.text == ""
            check(reply.tool_calls)
            calls += 1
        elif reply.finish_reason == "stop":
            assert json.loads(reply.text) == {"a": CALL}
            texts += 1
    assert texts > 0
    assert calls > 0
    reply = model.generate(HELLO, tools=TOOLS, tool_choice="none", schema=schema, seed=1, **RANDOM)
    assert json.loads(reply.text) == {"a": CALL}


@pytest.mark.parametrize(
    ("name", "options", "sentence", "param"),
    [
        ("hermes", {"regex": "a"}, "`regex` must be None with `tools`", "regex"),
        ("llama", {"schema": {}}, "this model writes its calls as JSON", "schema"),
        ("hermes", {"tools": [{**WEATHER, "function": {"name": "f", "strict": True,
            "parameters": {"properties": {"a": {"type": "wrong"}}}}}]},
         "tool `f` of `tools` (at /properties/a) must be valid for llguidance", "tools"),
        ("hermes", {"tools": [{**WEATHER, "function": {"name": "f", "parameters": {
            "properties": {"a": {"enum": ["x" * 70000]}}}}}]}, "`tools` must have at most 65536",
         "tools"),
        ("hermes", {"tools": [{**WEATHER, "function": {"name": "f", "parameters": {
            "properties": {"a": {"type": "integer", "multipleOf": 1_000_003}}}}}]},
         "`tools` must be simple enough to compile within 2 s", "tools"),
        ("hermes", {"max_tokens": 65537}, "at most 65536 with `tools`", "max_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 12 else "",
)  # fmt: skip
def test_what_is_refused(
    models: GiveModel, name: str, options: dict[str, Any], sentence: str, param: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        models(name).stream(HELLO, **{"tools": [WEATHER, TIME], **options})
    assert sentence in str(caught.value)
    assert caught.value.param == param


def test_tools_need_messages(models: GiveModel) -> None:
    for prompt in ("Hi", [1, 2]):
        with pytest.raises(InvalidArgument, match="`prompt` is not a list of messages"):
            models("hermes").stream(prompt, tools=TOOLS)


@pytest.mark.parametrize("name", sorted(WITHOUT_TOOLS))
def test_a_template_without_a_place_for_tools_gets_the_generic_form(
    models: GiveModel, name: str
) -> None:
    model = models(name)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    bias = {tokenizer.token_to_id("</think>"): 50.0} if name == "thinker" else {}
    for seed in range(3):
        reply = model.generate(
            HELLO, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed,
            logit_bias=bias, **RANDOM,
        )  # fmt: skip
        assert len(reply.tool_calls) == 1
        check(reply.tool_calls)
    reply = model.generate(
        HELLO, tools=TOOLS, seed=1, logit_bias=bias, temperature=1.0, max_tokens=9
    )
    assert reply.text
    assert not reply.tool_calls
