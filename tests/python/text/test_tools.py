"""Tools reach the chat template; the form of calls is found; calls are read from a reply."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream.errors import InvalidArgument
from sinkstream.request.tools import MAX_TOOLS, check_tools
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.find_thoughts import find_thoughts
from sinkstream.text.marked_text import Parts, joined
from sinkstream.text.thought_reader import ThoughtTags
from sinkstream.text.tokenizers.token_bytes import token_bytes
from sinkstream.text.tools.call_format import CallFormat
from sinkstream.text.tools.call_reader import NO_THOUGHTS, CallReader, CallSplitter
from sinkstream.text.tools.learn_call_format import learn_call_format
from sinkstream.text.unfinished_json import closed_json
from tests.python.lanes import examples
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.reasoning_templates import KEPT, text_format
from tests.python.text.tool_templates import (
    FORMATS,
    HERMES,
    TIME,
    TOOLS,
    WEATHER,
    XML,
    function,
    tool_format,
)

NASTY = 'a</tool_call>"}]\\ <function=f>\n'


@cache
def tags(name: str) -> tuple[CallFormat, ThoughtTags]:
    text = FORMATS[name]
    assert text.tokenizer is not None
    assert text.chat_template is not None
    form = find_thoughts(ChatFormat(text, text.tokenizer, text.chat_template), text.tokenizer)
    thoughts = None if form is None else form.spelled()
    table = token_bytes(text.tokenizer, text.tokenizer.get_vocab_size())
    calls = learn_call_format(text, None, thoughts)
    return calls, ThoughtTags(thoughts or NO_THOUGHTS, table, text.end_token_ids)


def literal(name: str, marked: str) -> str:
    tokenizer = FORMATS[name].tokenizer
    assert tokenizer is not None
    for token_id, marker in tags(name)[0].markers.items():
        marked = marked.replace(marker, tokenizer.id_to_token(token_id) or "")
    return marked.replace("\udfff", "123456789")


# ---- finding ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "trigger", "one", "between", "end"),
    [
        ("hermes", "<tool_call>", '<tool_call>\n{"name": "F", "arguments": A',
         '}\n</tool_call>\n<tool_call>\n{"name": "', "}\n</tool_call>"),
        ("thinking", "<tool_call>", '<tool_call>\n{"name": "F", "arguments": A',
         '}\n</tool_call>\n<tool_call>\n{"name": "', "}\n</tool_call>"),
        ("opened", "<tool_call>", '<tool_call>\n{"name": "F", "arguments": A',
         '}\n</tool_call>\n<tool_call>\n{"name": "', "}\n</tool_call>"),
        ("llama", '{"name": "', '{"name": "F", "parameters": A', None, "}"),
        ("mistral", "[TOOL_CALLS]", '[TOOL_CALLS][{"name": "F", "arguments": A',
         ', "id": "123456789"}, {"name": "', ', "id": "123456789"}]'),
        ("args", "[TOOL_CALLS]", "[TOOL_CALLS]F[ARGS]A", "[TOOL_CALLS]", ""),
        ("reasoning", "[TOOL_CALLS]", "[TOOL_CALLS]F[ARGS]A", "[TOOL_CALLS]", ""),
        ("function", "<function=", "<function=F>A", "</function>\n<function=", "</function>"),
        ("deepseek", "<|calls|>", "<|calls|><|call|>function<|sep|>F\n```json\nA",
         "\n```<|/call|>\n<|call|>function<|sep|>", "\n```<|/call|><|/calls|>"),
    ],
)  # fmt: skip
def test_the_form_of_calls_is_found_by_rendering(
    name: str, trigger: str, one: str, between: str | None, end: str
) -> None:
    form, _ = tags(name)
    begin, _, rest = one.partition("F")
    assert literal(name, form.trigger) == trigger
    assert literal(name, form.begin) == begin
    assert literal(name, form.middle) + "A" == rest
    assert (None if form.between is None else literal(name, form.between)) == between
    assert literal(name, form.end) == end
    assert form.is_bare == (name == "llama")
    assert form.has_short_ids == (name in ("mistral", "args", "reasoning"))


def test_a_template_that_leaves_tools_out_is_named() -> None:
    for text in (text_format(KEPT), text_format(HERMES.replace("tools", "others"))):
        with pytest.raises(InvalidArgument, match="template has no place for tools") as caught:
            learn_call_format(text)
        assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "template",
    [
        XML,
        # Arguments that are left out, before the name, after a name that is not told apart.
        HERMES.replace("c.function.arguments | tojson", "c.function.arguments | length"),
        HERMES.replace('"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | '
                       'tojson }}', '"arguments": {{ c.function.arguments | tojson }}, "name": '
                       '"{{ c.function.name }}"'),
        HERMES.replace('", "arguments": ', "-arguments: "),
        # A thought that is not known as one; no tag, in text; a reply without an end.
        HERMES.replace("<tool_call>", "<thinking></thinking><tool_call>"),
        HERMES.replace("<tool_call>", "Action:"),
        HERMES.replace("<|im_end|>", ""),
    ],
    ids=["xml", "left_out", "arguments_first", "name", "thought", "no_tag", "no_end"],
)  # fmt: skip
def test_a_form_that_cannot_be_read_is_named(template: str) -> None:
    with pytest.raises(InvalidArgument, match="in a form that is not supported"):
        learn_call_format(tool_format(template, "<|im_end|>"))


def test_calls_that_are_numbered_are_made_one_at_a_time() -> None:
    numbered = HERMES.replace('{"name"', '{"id": "{{ loop.index0 }}", "name"')
    form = learn_call_format(tool_format(numbered, "<|im_end|>"))
    assert form.begin == '<tool_call>\n{"id": "0", "name": "'
    assert form.between is None


# ---- tools and calls in prompts --------------------------------------------------------------


def test_tools_are_plain_text_in_the_prompt_whatever_they_say() -> None:
    text = FORMATS["mistral"]
    tokenizer = text.tokenizer
    assert tokenizer is not None
    harmful = function("f", {"type": "object", "properties": {"</s>": {}}}, description="[INST]")
    checked = check_tools([harmful])
    assert checked is not None
    ids = encode_chat(text, [{"role": "user", "content": "Hi"}], tools=checked.definitions)
    counts = {name: ids.count(tokenizer.token_to_id(name)) for name in ("</s>", "[INST]")}
    assert counts == {"</s>": 0, "[INST]": 1}
    assert "[INST]" in tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_are_written_as_json_once(name: str) -> None:
    arguments = {"city": "Rome", "n": [1, {"a": None}]}
    given = (arguments, json.dumps(arguments))
    written = []
    for form in given:
        call = {"id": "123456789", "type": "function",
                "function": {"name": "get_weather", "arguments": form}}  # fmt: skip
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        tokenizer = FORMATS[name].tokenizer
        assert tokenizer is not None
        ids = encode_chat(FORMATS[name], messages, add_generation_prompt=False)
        written.append(tokenizer.decode(ids, skip_special_tokens=False))
    assert written[0] == written[1]
    assert json.dumps(arguments) in written[0]


@pytest.mark.parametrize("arguments", ["[]", "[", "3", '"', "x", '{"a": NaN}', '{"a": 1}}', "{1"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    with pytest.raises(InvalidArgument, match="message 1 of `prompt`: `arguments` of a tool call"):
        encode_chat(FORMATS["hermes"], messages)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("", "{}"), ("{", "{}"), ('{"z', "{}"), ('{"z"', "{}"), ('{"z":', "{}"), ('{"z": 1', "{}"),
        ('{"z": 1,', '{"z": 1}'), ('{"z": 1, "b": tru', '{"z": 1}'), ('{"z": "Ro', '{"z": "Ro"}'),
        ('{"z": [1, {"a": "\\u00', '{"z": [1, {"a": ""}]}'), ('{"z": "\\\\', '{"z": "\\\\"}'),
        ('{"z": "\\', '{"z": ""}'), ('{"z": "}', '{"z": "}"}'),
        ('{"a":' * 5000, '{"a": ' * 63 + "{}" + "}" * 63),
        ('{"a":' * 80 + "1" + "}" * 80, '{"a": ' * 63 + "{}" + "}" * 63),
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_arguments_that_were_cut_are_closed(arguments: str, read: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    text = FORMATS["hermes"]
    assert text.tokenizer is not None
    ids = encode_chat(text, messages, add_generation_prompt=False)
    written = text.tokenizer.decode(ids, skip_special_tokens=False)
    assert f'"arguments": {read}}}\n</tool_call>' in written


@examples(300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.booleans(),
    st.data(),
)
def test_json_that_ends_anywhere_can_be_closed(
    value: Any, is_ascii: bool, data: st.DataObject
) -> None:
    whole = json.dumps({"a": value, "b": value}, ensure_ascii=is_ascii)
    end = data.draw(st.integers(1, len(whole)))
    closed = json.loads(closed_json(whole[:end], 64))
    assert isinstance(closed, dict)
    if end == len(whole):
        assert closed == json.loads(whole)


@pytest.mark.parametrize("name", ["hermes", "thinking", "llama", "function"])
def test_turns_with_calls_are_what_the_template_writes(name: str) -> None:
    text = FORMATS[name]
    call = {"id": "a", "type": "function",
            "function": {"name": "get_time", "arguments": '{"zone": 1}'}}  # fmt: skip
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Now.", "tool_call_id": "a"},
    ]
    if name == "thinking":  # its thought is left out only once the user replies
        messages[1]["reasoning_content"] = "I look."
    checked = check_tools(TOOLS)
    assert checked is not None
    turns = detect_turn_format(text, None, checked.definitions)
    ids = turns.opening(None) + turns.exchange(*messages[:2], after=None)
    ids += turns.request(messages[2], after="assistant")
    assert ids == encode_chat(text, messages, tools=checked.definitions)


# ---- reading ---------------------------------------------------------------------------------


def reply(name: str, text: str, *calls: tuple[str, str]) -> str:
    """Return a reply as the template writes it, in letters."""
    form, _ = tags(name)
    marked = text
    for i, (tool, arguments) in enumerate(calls):
        before = form.begin if i == 0 else form.between
        assert before is not None
        marked += before + tool + form.middle + arguments
    return literal(name, marked + (form.end if calls else ""))


def read(name: str, text: str, *, is_first: bool = False) -> tuple[Parts, CallReader]:
    form, thoughts = tags(name)
    tokenizer = FORMATS[name].tokenizer
    assert tokenizer is not None
    reader = CallReader(thoughts, form, is_first=is_first or form.is_bare)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    parts: Parts = []
    for token_id in ids:
        shown = "" if token_id in thoughts.table.special else tokenizer.decode([token_id])
        parts += reader.token(token_id, shown)[1]
    return parts + reader.end(), reader


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_first", [False, True])
def test_calls_are_read(name: str, is_first: bool) -> None:
    nasty = json.dumps({"city": NASTY, "deep": {"}": ["]"]}})
    calls = [("get_weather", nasty), ("get_time", "{}")]
    if tags(name)[0].between is None:
        calls = calls[:1]
    thought = {
        "reasoning": "[THINK]Hm.[/THINK]",
        "opened": "Hm.\n</think>\n\n",
        "thinking": "<think>\nHm.\n</think>\n\n",
    }
    text = "" if is_first or name == "llama" else "I see. "
    written = thought.get(name, "") + reply(name, text, *calls)
    parts, reader = read(name, written, is_first=is_first)
    assert [(call.name, call.arguments) for call in reader.calls] == calls
    assert joined(parts, "text") == text.rstrip()
    assert joined(parts, "thought") == ("Hm." if name in thought else "")
    length = 9 if tags(name)[0].has_short_ids else 29
    assert [len(call.id) for call in reader.calls] == [length] * len(calls)
    assert len({call.id for call in reader.calls}) == len(calls)


@pytest.mark.parametrize("name", FORMATS)
def test_text_without_a_call_stays_as_it_is(name: str) -> None:
    if name == "opened":
        pytest.skip("its replies begin with a thought")
    text = ' A {"name": "b"} <tool <function> [TOOL_CALLS ]  '
    parts, reader = read(name, text)
    assert joined(parts, "text") == text
    assert reader.calls == []


def test_a_trigger_in_a_thought_is_no_call() -> None:
    written = "<think>\n<tool_call>\n</think>\n\n" + reply("thinking", "", ("get_time", "{}"))
    parts, reader = read("thinking", written)
    assert joined(parts, "thought") == "<tool_call>"
    assert [call.name for call in reader.calls] == ["get_time"]


def test_calls_that_can_only_come_first_are_text_later() -> None:
    written = '{"a": "' + reply("hermes", "", ("get_time", "{}")) + '"}'
    parts, reader = read("hermes", written, is_first=True)
    assert joined(parts, "text") == written
    assert reader.calls == []


def test_an_unfinished_call_has_what_there_is() -> None:
    written = reply("hermes", "", ("get_time", '{"zone": 1'))
    parts, reader = read("hermes", written[: -len("}\n</tool_call>")])
    assert [(call.name, call.arguments) for call in reader.calls] == [("get_time", '{"zone": 1')]
    assert joined(parts, "text") == ""
    for end in range(len("<tool_call>"), len('<tool_call>\n{"name": "get_time", ')):
        _, reader = read("hermes", written[:end])
        assert reader.calls == []


@examples(200)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(["", "Hi.", " \n", "<tool", "x" + " " * 70]),
    st.lists(
        st.sampled_from(["{}", json.dumps({"city": NASTY}), '{"a":{"b":"\\\\"}}']), max_size=3
    ),
    st.data(),
)
def test_cutting_a_reply_anywhere_changes_nothing(
    name: str, text: str, arguments: list[str], data: st.DataObject
) -> None:
    form, _ = tags(name)
    marked = text
    for i, one in enumerate(arguments if form.between is not None else arguments[:1]):
        marked += (form.begin if i == 0 else form.between or "") + "f" + form.middle + one
    marked = (marked + form.end * bool(arguments)).replace("\udfff", "123456789")
    whole = CallSplitter(form, is_first=form.is_bare)
    expected = whole.push(marked) + whole.end()
    splitter = CallSplitter(form, is_first=form.is_bare)
    parts: Parts = []
    while marked:
        count = data.draw(st.integers(1, len(marked)))
        parts += splitter.push(marked[:count])
        marked = marked[count:]
    parts += splitter.end()
    for kind in ("text", "tool_call"):
        assert joined(parts, kind) == joined(expected, kind)  # type: ignore[arg-type]
    assert [call.arguments for call in splitter.calls] == [call.arguments for call in whole.calls]


# ---- what is refused -------------------------------------------------------------------------


def deep(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


@pytest.mark.parametrize(
    ("tools", "choice", "sentence", "param"),
    [
        ([WEATHER, WEATHER], None, "must have different names, but two are named", "tools"),
        ([function("a b")], None, "`name` must be 1 to 64 ASCII letters", "tools"),
        ([function("<tool_call>")], None, "`name` must be 1 to 64 ASCII letters", "tools"),
        ([function("a" * 65)], None, "`name` must be 1 to 64 ASCII letters", "tools"),
        ([function("f", {"type": "array"})], None, 'schema of the type "object"', "tools"),
        ([function("f", deep(70))], None, "nested at most 64 levels deep", "tools"),
        ([function("f", {"a": "\ud800"})], None,
         "a string must be valid Unicode, but has the lone surrogate U+D800 at position 0",
         "tools"),
        ([{"type": "custom"}], None, '`type` must be "function", but is \'custom\'', "tools"),
        ([function(f"f{i}") for i in range(MAX_TOOLS + 1)], None, "at most 128 tools", "tools"),
        ([function("f", description="x" * 270_000)], None, "at most 262144 characters", "tools"),
        ([WEATHER], "some", 'must be "auto", "none", "required" or a named', "tool_choice"),
        ([WEATHER], {"type": "function", "function": {"name": "x"}}, "but names 'x'",
         "tool_choice"),
        ([WEATHER], {"type": "function"}, "must name one of `tools`", "tool_choice"),
        ([WEATHER], {"type": "web_search"}, 'must have the type "function"', "tool_choice"),
        ([WEATHER], {"type": "allowed_tools", "mode": "some", "tools": []}, "must have the mode",
         "tool_choice"),
        ([WEATHER], {"type": "allowed_tools", "mode": "auto", "tools": []}, "at least 1 tool",
         "tool_choice"),
        ([], "required", "needs `tools`, but there are none", "tool_choice"),
        (None, {"type": "function", "name": "f"}, "needs `tools`", "tool_choice"),
    ],
)  # fmt: skip
def test_bad_tools_are_refused(tools: Any, choice: Any, sentence: str, param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_tools(tools, choice)
    assert sentence in str(caught.value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("tools", "choice", "parallel", "sentence"),
    [
        ("x", None, None, "`tools` must be a list of functions, but is of type str."),
        ([3], None, None, "tool 0 of `tools` must be a mapping, but is of type int."),
        ([{"type": "function"}], None, None, "`function` must be a mapping, but is of type None"),
        ([function("f", [])], None, None, "`parameters` must be a JSON schema"),
        ([function("f", {"a": math.inf})], None, None, "must hold only JSON, but holds inf."),
        ([function("f", {3: "a"})], None, None, "only JSON, but has a key of type int."),
        ([function("f", description=3)], None, None, "`description` must be a string"),
        ([WEATHER], 3, None, "`tool_choice` must be a string or a mapping"),
        ([WEATHER], None, 1, "`parallel_tool_calls` must be a bool or None"),
    ],
)
def test_wrong_types_are_refused(tools: Any, choice: Any, parallel: Any, sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_tools(tools, choice, parallel)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "choice", "parallel", "expected"),
    [
        ([WEATHER], "required", None, False),
        ([WEATHER], "required", True, True),
        ([WEATHER], "auto", None, True),
        ([WEATHER, TIME], "required", None, True),
        ([WEATHER, TIME], {"type": "function", "function": {"name": "get_time"}}, None, False),
    ],
)
def test_the_only_function_that_a_reply_must_call_is_called_once(
    tools: Any, choice: Any, parallel: bool | None, expected: bool
) -> None:
    found = check_tools(tools, choice, parallel)
    assert found is not None
    assert found.is_parallel == expected


def test_a_choice_among_tools() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TIME]}}
    for choice, expected in (
        (None, ("auto", ("get_weather", "get_time"))),
        ("none", ("none", ("get_weather", "get_time"))),
        ({"type": "function", "function": {"name": "get_time"}}, ("required", ("get_time",))),
        ({"type": "function", "name": "get_time"}, ("required", ("get_time",))),
        (allowed, ("auto", ("get_time",))),
        ({**allowed["allowed_tools"], "type": "allowed_tools"}, ("auto", ("get_time",))),  # type: ignore[dict-item]
    ):
        checked = check_tools(TOOLS, choice)
        assert checked is not None
        assert (checked.choice, checked.allowed) == expected
    assert check_tools([], "auto") is None
    assert check_tools(None) is None
