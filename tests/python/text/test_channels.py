"""Replies and calls on channels: harmony, with gpt-oss's own template, which llama.cpp has."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.request.tools import Tools, check_tools
from sinkstream.text.conversation_formats import ConversationFormats
from sinkstream.text.marked_text import Parts, joined
from sinkstream.text.templates import sandbox
from sinkstream.text.thought_reader import ThoughtReader, ThoughtTags
from sinkstream.text.tokenizers.token_bytes import token_bytes
from sinkstream.text.tools.call_format import call_grammar
from tests.python.lanes import examples
from tests.python.text.llama_cpp_sources import files_of_sdist
from tests.python.text.tool_templates import CHANNELS, HARMONY_TOKENS, TOOLS, tool_format

TEXT = CHANNELS["harmony"]
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{"zone": 1}'
EARLY_CALL = ' to=functions.get_time<|channel|>commentary json<|message|>{"zone": 1}'
PREAMBLE = "<|channel|>commentary<|message|>I look."


def checked() -> Tools:
    """Return tools with descriptions, which gpt-oss's template needs."""
    described = [
        {**tool, "function": {"description": "It tells.", **tool["function"]}} for tool in TOOLS
    ]
    found = check_tools(described)
    assert found is not None
    return found


def formats_of(text: TextFormat) -> ConversationFormats:
    assert text.tokenizer is not None
    return ConversationFormats(text, token_bytes(text.tokenizer, text.tokenizer.get_vocab_size()))


def ids_of(text: str) -> list[int]:
    assert TEXT.tokenizer is not None
    ids: list[int] = TEXT.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@cache
def tags() -> ThoughtTags:
    found = formats_of(TEXT).tags(None)
    assert found is not None
    return found


def reader(*, has_tools: bool = True) -> ThoughtReader:
    return ThoughtReader(tags(), "to=functions." if has_tools else "")


CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (f"{ANALYSIS}A b{NEXT}{FINAL}Yes.", "A b", "Yes.", []),
    (f"{FINAL}Yes.", "", "Yes.", []),
    (f"{ANALYSIS}A{NEXT}{ANALYSIS}B{NEXT}{FINAL}Yes.", "A\n\nB", "Yes.", []),
    (f"{ANALYSIS}A{NEXT}{PREAMBLE}{NEXT}{FINAL}Yes.", "A", "I look.\n\nYes.", []),
    (f"{ANALYSIS}A{NEXT}{CALL}", "A", "", [("get_time", '{"zone": 1}')]),
    (f"{ANALYSIS}A{NEXT}{EARLY_CALL}", "A", "", [("get_time", '{"zone": 1}')]),
    (f"{ANALYSIS}A{NEXT}{PREAMBLE}{NEXT}{CALL}", "A", "I look.", [("get_time", '{"zone": 1}')]),
    (CALL, "", "", [("get_time", '{"zone": 1}')]),
    (EARLY_CALL, "", "", [("get_time", '{"zone": 1}')]),
    (f"{ANALYSIS}A", "A", "", []),
    (f"{ANALYSIS}A{NEXT}<|channel|>fin", "A", "", []),
    (f"{ANALYSIS}A to=functions.get_time b{NEXT}{FINAL}to=functions.x", "A to=functions.get_time b",
     "to=functions.x", []),
    ("<|channel|>analysis to=browser.search code<|message|>{}", "{}", "", []),
    ("Plain <b> text", "", "Plain <b> text", []),
    ("", "", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "thought", "text", "calls"), CASES)
def test_a_reply_is_split(
    reply: str, thought: str, text: str, calls: list[tuple[str, str]]
) -> None:
    split = tags().split_with(reader(), ids_of(reply))
    assert (split.thought, split.text) == (thought, text)
    assert [(call.name, call.arguments) for call in split.calls] == calls


def test_without_tools_a_message_for_one_is_a_thought() -> None:
    split = tags().split_with(reader(has_tools=False), ids_of(CALL))
    assert (split.thought, split.text, split.calls) == ('{"zone": 1}', "", [])


PIECES = st.sampled_from(
    ["<|channel|>", "analysis", "commentary", "final", "<|message|>", "<|end|>", "<|start|>",
     "assistant", " to=functions.get_time", "to=", "<|constrain|>", "json", '{"zone": 1}', " ",
     "\n", "é🎉", "a", ANALYSIS, FINAL, NEXT, CALL, EARLY_CALL, PREAMBLE, " " * 70]
)  # fmt: skip


@examples(300)
@given(st.lists(PIECES, max_size=12), st.booleans(), st.data())
def test_cutting_a_reply_anywhere_changes_nothing(
    pieces: list[str], has_tools: bool, data: st.DataObject
) -> None:
    """Both between its tokens and, as their text lags behind them, within the text."""
    marked = "".join(pieces).replace("<|constrain|>", "")
    for token_id, mark in tags().form.markers.items():
        assert TEXT.tokenizer is not None
        marked = marked.replace(TEXT.tokenizer.id_to_token(token_id) or "", mark)
    whole, cut = reader(has_tools=has_tools)._splitter, reader(has_tools=has_tools)._splitter
    expected = whole.push(marked) + whole.end()
    parts: Parts = []
    while marked:
        count = data.draw(st.integers(1, len(marked)))
        parts += cut.push(marked[:count])
        marked = marked[count:]
    parts += cut.end()
    for kind in ("thought", "text", "tool_call"):
        assert joined(parts, kind) == joined(expected, kind)  # type: ignore[arg-type]


# ---- what the model may write --------------------------------------------------------------------


def accepts(grammar: str, reply: str) -> bool:
    """Return whether a reply, with its end token, follows a grammar."""
    llguidance = pytest.importorskip("llguidance", reason="needs the extra `structured`")
    from llguidance.hf import from_tokenizer
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(tokenizer_object=TEXT.tokenizer, eos_token="<|return|>")
    matcher = llguidance.LLMatcher(from_tokenizer(wrapped), grammar)
    ids = ids_of(reply)
    return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids)
                and matcher.is_accepting())  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "auto", "required", "none"),
    [
        (f"{ANALYSIS}A{NEXT}{FINAL}Yes.", True, False, True),
        (f"{FINAL}Yes.", True, False, True),
        (f"{ANALYSIS}A{NEXT}{CALL}", True, True, False),
        (f"{ANALYSIS}A{NEXT}{EARLY_CALL}", True, True, False),
        (CALL, True, True, False),
        (CALL.replace("<|constrain|>", ""), True, True, False),
        (f"{ANALYSIS}A{NEXT}{PREAMBLE}{NEXT}{CALL}", True, False, False),
        (f"{ANALYSIS}A{NEXT}{PREAMBLE}{NEXT}{FINAL}B", True, False, True),
        (CALL.replace("get_time", "get_tune"), False, False, False),
        (CALL.replace("1", '"a"'), False, False, False),
        ("Yes.", False, False, False),
    ],
)
def test_the_grammar_allows_what_the_choice_of_tools_allows(
    reply: str, auto: bool, required: bool, none: bool
) -> None:
    schemas = {tool["function"]["name"]: json.dumps(tool["function"]["parameters"])
               for tool in TOOLS}  # fmt: skip
    form = formats_of(TEXT).calls(None, checked())
    for choice, expected in (("auto", auto), ("required", required), ("none", none)):
        tools = check_tools(TOOLS, choice)
        assert tools is not None
        grammar = call_grammar(form, tools, schemas, tags().form.spelled())
        assert accepts(grammar, reply) == expected, (choice, grammar)


# ---- prompts -------------------------------------------------------------------------------------

NOW = datetime(2025, 8, 5, 23, 59)


def call(name: str = "get_time", arguments: str = '{"zone": 1}') -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}


TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes.", "thinking": "Hm."},
        {"role": "user", "content": "When? é🎉"},
    ],
    [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "", "thinking": "I look.", "tool_calls": [call()]},
        {"role": "tool", "content": "Now.", "tool_call_id": "a"},
    ],
    [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "", "thinking": "I look.", "tool_calls": [call()]},
        {"role": "tool", "content": "Now.", "tool_call_id": "a"},
        {"role": "assistant", "content": "Now."},
        {"role": "user", "content": "And there?"},
    ],
]


@pytest.fixture(scope="module")
def published(pytestconfig: pytest.Config) -> TextFormat:
    """Return the text format of gpt-oss: its template, and its control tokens."""
    path = "models/templates/openai-gpt-oss-120b.jinja"
    folder: Path = files_of_sdist(pytestconfig, "templates", lambda name: name == path)
    template = (folder / path).read_text()
    return tool_format(template, "<|return|>", *HARMONY_TOKENS, also_ends="<|call|>")


@pytest.mark.parametrize("effort", [None, "high"])
@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("talk", range(len(TALKS)))
def test_prompts_are_those_of_transformers(
    talk: int,
    has_tools: bool,
    effort: str | None,
    published: TextFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transformers = pytest.importorskip("transformers")
    chat_templates = transformers.utils.chat_template_utils

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return NOW

    monkeypatch.setattr(chat_templates, "datetime", Frozen)
    tools = checked() if has_tools else None
    variables = {} if effort is None else {"reasoning_effort": effort}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=published.tokenizer, chat_template=published.chat_template
    )
    parsed = [
        {**message, **({"tool_calls": [json_call(one) for one in message["tool_calls"]]}
                       if "tool_calls" in message else {})}
        for message in TALKS[talk]
    ]  # fmt: skip
    expected = theirs.apply_chat_template(
        parsed,
        tools=None if tools is None else tools.definitions,
        add_generation_prompt=True,
        return_dict=False,
        **variables,
    )
    with sandbox.written_at(NOW.timestamp()):
        found = formats_of(published).encode_chat(TALKS[talk], effort, tools)
    assert found == expected


def json_call(one: dict[str, Any]) -> dict[str, Any]:
    """Return a call whose arguments are an object, as the template wants them."""
    function = one["function"]
    return {**one, "function": {**function, "arguments": json.loads(function["arguments"])}}


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("which", ["published", "short"])
def test_turns_are_what_the_template_writes(
    which: str, has_tools: bool, published: TextFormat
) -> None:
    formats = formats_of(published if which == "published" else TEXT)
    tools = checked() if has_tools else None
    turns = formats.turns(None, tools)
    for talk in TALKS[:3]:
        said = [dict(message) for message in talk]
        system = said.pop(0)["content"] if said[0]["role"] == "system" else None
        after = None if system is None else "system"
        ids = turns.opening(system)
        if len(said) > 1:
            ids += turns.exchange(*said[:2], after=after)
            after = "assistant"
        assert ids + turns.request(said[-1], after=after) == formats.encode_chat(talk, None, tools)


@pytest.mark.parametrize("which", ["published", "short"])
def test_a_result_follows_its_call(which: str, published: TextFormat) -> None:
    formats = formats_of(published if which == "published" else TEXT)
    turns, (question, reply, result) = formats.turns(None, checked()), TALKS[3]
    ids = turns.opening(None) + turns.exchange(question, reply, after=None)
    ids += turns.request(result, after="assistant", calls=reply["tool_calls"])
    assert ids == formats.encode_chat(TALKS[3], None, checked())
    talk = TALKS[4]
    ids = turns.opening(None) + turns.earlier_turn(talk[:4], after=None, before=("user",))
    ids += turns.request(talk[4], after="assistant")
    assert ids == formats.encode_chat(talk, None, checked())


# ---- the date ------------------------------------------------------------------------------------


def test_a_conversation_begins_with_the_date_of_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found about a template must not keep the date of when it was found."""
    formats = ConversationFormats(TEXT, formats_of(TEXT)._table)
    day = 86_400.0
    for tools in (None, checked()):
        for system in (None, "Be brief."):
            seen = []
            for moment in (NOW.timestamp(), NOW.timestamp() + day):
                with sandbox.written_at(moment):
                    turns = formats.turns(None, tools)
                    ids = turns.opening(system)
                    after = None if system is None else "system"
                    ids += turns.request(TALKS[0][0], after=after)
                    said = [] if system is None else [{"role": "system", "content": system}]
                    assert ids == formats.encode_chat([*said, *TALKS[0]], None, tools)
                seen.append(ids)
            assert len(seen[0]) == len(seen[1])
            assert seen[0] != seen[1]
