"""Messages in OpenAI's form encode as in transformers."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import check_messages
from tests.python.text import templates, vocabularies
from tests.python.text.encoding import encode_chat, encode_prompt
from tests.python.text.test_chat_format import oracle

WITH_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% elif m.content %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONLY_PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
)
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "<Köln>", "days": 2, "x": [None, 1.5]}},
}
TOOLS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Weather?", "name": "Ada"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"t": 20}', "tool_call_id": "call_1", "name": "weather"},
    {"role": "assistant", "content": "20 °C", "reasoning": "Hm.", "tool_calls": None},
]
PARTS = [{"type": "text", "text": "a < b"}, {"type": "text", "text": " c\n"}]


def with_template(template: str) -> TextFormat:
    return dataclasses.replace(vocabularies.qwen3(), chat_template=template)


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


@pytest.mark.parametrize("template", [WITH_TOOLS, templates.QWEN2, templates.QWEN3])
def test_tool_calls_names_and_developers_encode_as_in_transformers(template: str) -> None:
    messages = TOOLS if template == WITH_TOOLS else [*TOOLS[:2], *TOOLS[4:]]
    text = with_template(template)
    assert encode_chat(text, messages) == oracle(text, messages)


def test_the_fields_that_openais_replies_contain_are_accepted() -> None:
    text = with_template(WITH_TOOLS)
    extra = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    messages = [*user("a"), {"role": "assistant", "content": "b", "tool_calls": None, **extra}]
    assert encode_chat(text, messages) == oracle(text, messages)


def test_objects_that_dump_themselves_are_accepted() -> None:
    class Reply:
        def model_dump(self) -> dict[str, Any]:
            return {"role": "assistant", "content": "b", "refusal": None}

    text = with_template(WITH_TOOLS)
    plain = [*user("a"), {"role": "assistant", "content": "b"}]
    assert encode_chat(text, [plain[0], Reply()]) == encode_chat(text, plain)
    assert encode_prompt(text, 1000, [Reply()]) == encode_chat(text, plain[1:])  # type: ignore[list-item]


def test_text_parts_encode_as_in_transformers_if_the_template_reads_them() -> None:
    text = with_template(WITH_TOOLS)
    messages = [*user(PARTS), {"role": "assistant", "content": PARTS[:1]}, *user([])]
    assert encode_chat(text, messages) == oracle(text, messages)


@pytest.mark.parametrize("template", [templates.SMOLLM2, templates.LLAMA3, templates.QWEN3])
def test_text_parts_are_joined_if_the_template_reads_only_strings(template: str) -> None:
    text = with_template(template)
    joined = [{"role": "system", "content": "x"}, *user("a < b\n c\n")]
    parts = [{"role": "system", "content": [{"type": "text", "text": "x"}]}, *user(PARTS)]
    assert encode_chat(text, parts) == encode_chat(text, joined)


def test_a_string_is_a_part_if_the_template_reads_only_parts() -> None:
    text = with_template(ONLY_PARTS)
    for content in ("a < b", " <|im_end|>"):
        parts = [{"type": "text", "text": content}]
        assert encode_chat(text, user(content)) == encode_chat(text, user(parts))
    assert encode_chat(text, user("a < b")) == oracle(text, user([PARTS[0]]))


@pytest.mark.parametrize("role", ["developer", "tool"])
def test_a_message_that_the_template_omits_is_said(role: str) -> None:
    text = with_template(templates.PHI3)
    messages = [{"role": role, "content": "Be brief."}, *user("a")]
    with pytest.warns(UserWarning, match=f'a message with the role "{role}", but .* omits it'):
        assert encode_chat(text, messages) == oracle(text, messages)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_chat(text, user("a"))
        encode_chat(with_template("{{ messages[0].content | upper }}"), user("a"))


def test_control_tokens_in_every_field_stay_plain_text() -> None:
    text = with_template(WITH_TOOLS)
    tokenizer = text.tokenizer
    assert tokenizer is not None
    end = "<|im_end|>"
    call = {"type": "function", "function": {"name": end, "arguments": {end: [end]}}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": end}], "name": end},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": end},
        {"role": "tool", "content": end, "tool_call_id": end},
    ]
    ids = encode_chat(text, messages)
    assert ids.count(tokenizer.token_to_id(end)) == len(messages)
    assert tokenizer.decode(ids, skip_special_tokens=False).count(end) == len(messages) + 8


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
         r"part 0 of `content`: `type` must be \"text\", but is 'image_url'. Only text is supp"),
        ({"role": "user", "content": [PARTS[0], {"text": "x"}]}, "part 1 .*must be .*but is None"),
        ({"role": "user", "content": [{**PARTS[0], "cache": 1}]}, "only the keys `text` and `ty"),
        ({"role": "user", "content": [{"type": "text", "text": "\ud800"}]}, "surrogate U.D800 at"),
        ({"role": "user", "content": "x", "contents": "y"}, "only the keys annot.* has 'contents'"),
        ({"role": "user", "content": "x", 3: "y"}, "must have only .* but has 3"),
        ({"role": "assistant", "content": "x", "audio": {"id": "y"}}, "`audio` must be None or e"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "y"}}, "`function_call` "),
        ({"role": "user", "content": "x", "name": "a\ud800"}, "`name` must be valid Unicode"),
        ({"role": "function", "content": "x"}, "`role` must be one of .* but is 'function'"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(message: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^stream: message 1 of `prompt`.*{sentence}"):
        check_messages([*user("a"), message])


def deep() -> Any:
    data: Any = 1
    for _ in range(99):
        data = [data]
    return data


@pytest.mark.parametrize(
    ("more", "error", "sentence"),
    [
        ({"content": None}, TypeError, "`content` must be a string or a list of parts"),
        ({"content": ["x"]}, TypeError, "part 0 of `content` must be a mapping, but is of"),
        ({"content": [{"type": "text", "text": 3}]}, TypeError, "`text` must be a string"),
        ({"content": {"a": 1}}, TypeError, "`content` must be a string or a list of parts"),
        ({"name": 3}, TypeError, "`name` must be a string, but is of type int"),
        ({"tool_calls": {}}, TypeError, "`tool_calls` must be a list of mappings"),
        ({"tool_calls": ["x"]}, TypeError, "call 0 of `tool_calls` must be a mapping, but is of"),
        ({"tool_calls": [{"x": object()}]}, TypeError, "JSON-serializable, but is of type object"),
        ({"tool_calls": [{3: "x"}]}, TypeError, "a key must be a string, but is of type int"),
        ({"tool_calls": [{"x": deep()}]}, InvalidArgument, "nested at most 64 levels deep"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_an_error_that_says_where(
    more: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=f"^stream: message 0 of `prompt`.*{sentence}"):
        check_messages(user("x") and [{"role": "user", "content": "x", **more}])
