"""The generic form of tools, and which chat templates get it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sinkstream.errors import InvalidArgument
from sinkstream.request.tools import Tools, check_tools
from sinkstream.text.conversation_formats import ConversationFormats
from sinkstream.text.tools.call_format import CallFormat
from sinkstream.text.tools.generic_form import GENERIC_CALLS, _definitions
from tests.python.text import vocabularies
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.template_fuzz import tokenizer_of
from tests.python.text.tool_templates import FORMATS, TOOLS, WITHOUT_TOOLS

CALL = {"id": "a", "type": "function",
        "function": {"name": "get_time", "arguments": '{"zone":  1}'}}  # fmt: skip
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "Now.", "tool_call_id": "a"},
    {"role": "tool", "content": [{"type": "text", "text": "Later."}], "tool_call_id": "a"},
    {"role": "user", "content": "And there?"},
]
CALLS = "\n".join(
    ['<tool_call>\n{"name": "get_time", "arguments": {"zone":  1}}\n</tool_call>'] * 2
)
RESULTS = [f"<tool_response>\n{text}\n</tool_response>" for text in ("Now.", "Later.")]


def checked() -> Tools:
    tools = check_tools(TOOLS)
    assert tools is not None
    return tools


def written(name: str, messages: list[dict[str, Any]], tools: bool = True, **options: Any) -> str:
    """Return what the template writes, with control tokens."""
    text = (FORMATS | WITHOUT_TOOLS)[name]
    given = checked().definitions if tools else ()
    ids = encode_chat(text, messages, tools=given, **options)
    assert text.tokenizer is not None
    return str(text.tokenizer.decode(ids, skip_special_tokens=False))


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def definitions(text: str) -> str:
    """Return what the prompt says about tools."""
    begin, end = text.index("Answer in plain"), text.index("\n</tools>") + len("\n</tools>")
    return text[begin:end]


@pytest.mark.parametrize("name", ["chatml", "xml"])
def test_tools_are_in_the_system_text_and_results_are_messages_of_the_user(name: str) -> None:
    text = written(name, TALK)
    about = definitions(text)
    own = "Be kind.\n\n" if name == "chatml" else ""
    turns = [("system", own + about), ("user", "When?"), ("assistant", CALLS),
             ("user", RESULTS[0]), ("user", RESULTS[1]), ("user", "And there?")]  # fmt: skip
    assert text == "".join(turn(*one) for one in turns) + "<|im_start|>assistant\n"
    for tool in TOOLS:
        assert json.dumps(tool["function"]) in about.splitlines()
    asked = written(name, [{"role": "system", "content": "Be brief."}, *TALK])
    assert asked == text.replace(own + about, f"Be brief.\n\n{about}")


def test_a_strict_template_has_tools_in_the_first_question_and_results_in_one_message() -> None:
    text = written("strict", TALK)
    about = definitions(text)
    said = "\n".join([*RESULTS, "And there?"])
    turns = [("user", f"{about}\n\nWhen?"), ("assistant", CALLS), ("user", said)]
    assert text == "".join(turn(*one) for one in turns) + "<|im_start|>assistant\n"


def test_results_are_read_by_a_template_that_omits_their_role(
    recwarn: pytest.WarningsRecorder,
) -> None:
    for tools in (True, False):
        text = written("omitting", TALK, tools)
        assert all(result in text for result in RESULTS)
    assert not recwarn.list
    turns = detect_turn_format(WITHOUT_TOOLS["omitting"], None, checked().definitions)
    tokenizer = WITHOUT_TOOLS["omitting"].tokenizer
    assert tokenizer is not None
    history = tokenizer.decode(
        turns.history([*TALK[:4], {"role": "assistant", "content": "Soon."}])
    )
    assert all(result in history for result in RESULTS)


def test_a_history_with_calls_keeps_them_when_the_tools_are_gone() -> None:
    text = written("chatml", TALK, tools=False)
    turns = [("system", "Be kind."), ("user", "When?"), ("assistant", CALLS), ("tool", "Now."),
             ("tool", "Later."), ("user", "And there?")]  # fmt: skip
    assert text == "".join(turn(*one) for one in turns) + "<|im_start|>assistant\n"
    said = "\n".join([*RESULTS, "And there?"])
    turns = [("user", "When?"), ("assistant", CALLS), ("user", said)]
    expected = "".join(turn(*one) for one in turns) + "<|im_start|>assistant\n"
    assert written("strict", TALK, tools=False) == expected


@pytest.mark.parametrize("arguments", ['{"z', "", "[", {"zone": 1}])
def test_whatever_a_call_says_is_text(arguments: Any) -> None:
    call = {**CALL, "function": {"name": "get_time", "arguments": arguments}}
    messages = [TALK[0], {"role": "assistant", "tool_calls": [call]}, *TALK[2:]]
    shown = '{"zone": 1}' if isinstance(arguments, dict) else arguments or "{}"
    for tools in (True, False):
        assert f'"arguments": {shown}}}\n</tool_call>' in written("chatml", messages, tools)


@pytest.mark.parametrize("name", ["chatml", "strict"])
def test_parts_are_what_the_template_writes(name: str) -> None:
    text = WITHOUT_TOOLS[name]
    tools = checked().definitions
    first = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [TALK[0], first, TALK[2]]
    turns = detect_turn_format(text, None, tools)
    assert turns.is_exact, turns.difference
    ids = turns.opening(None) + turns.exchange(*messages[:2], after=None)
    ids += turns.request(messages[2], after="assistant")
    assert ids == encode_chat(text, messages, tools=tools)


@pytest.mark.parametrize("name", [*FORMATS, *WITHOUT_TOOLS])
def test_only_templates_without_a_form_of_their_own_get_the_generic_one(name: str) -> None:
    formats = ConversationFormats((FORMATS | WITHOUT_TOOLS)[name], None)
    tools = checked()
    assert formats.has_generic_tools(None, tools) == (name in WITHOUT_TOOLS)


def test_the_generic_form_can_be_chosen() -> None:
    formats = ConversationFormats(FORMATS["function"], None)
    own = checked()
    tools = Tools(own.definitions, is_generic=True)
    assert isinstance(formats.calls(None, own), CallFormat)
    assert formats.calls(None, own) != GENERIC_CALLS
    assert formats.calls(None, tools) == GENERIC_CALLS
    ids = [formats.encode_chat(TALK[:1], None, one) for one in (own, tools)]
    assert ids[0] != ids[1]


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Its name."},
        "unit": {"enum": ["C", "F"]},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "hours": {"type": "array", "items": {"type": ["integer", "string"]}},
        "more": True,
    },
    "required": ["city"],
}


def test_many_tools_are_written_as_signatures() -> None:
    weather = {"name": "get_weather", "description": "Tell the weather\n of a city. Or do not."}
    few = [weather | {"parameters": PARAMETERS}]
    assert _definitions(few) == json.dumps(few[0])
    many = [*few * 20, {"name": "stop"}]
    *signatures, last = _definitions(many).splitlines()
    assert set(signatures) == {
        'get_weather(city: string, unit?: "C" | "F", days?: integer | null, '
        "hours?: (integer | string)[], more?: any): Tell the weather of a city."
    }
    assert last == "stop()"


REFUSED = re.compile(
    r"`tools` must be empty: the checkpoint's chat template writes tool calls in a form that is not"
    r" supported|the checkpoint's chat template fails on these messages, or refuses them"
)


PLAIN = frozenset({"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
"""No control tokens in nearly all vocabularies."""


@pytest.mark.slow
def test_checkpoints_templates_take_tools_or_refuse_them_clearly(real_templates: Path) -> None:
    said, refused = {}, {}
    for file in sorted(real_templates.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        tokenizer = tokenizer_of(source, PLAIN)
        text = dataclasses.replace(vocabularies.qwen3(), tokenizer=tokenizer, chat_template=source)
        formats = ConversationFormats(text, None)
        try:
            formats.calls(None, checked())
            ids = formats.encode_chat(TALK[:3], None, checked())
        except InvalidArgument as error:
            refused[file.stem] = str(error)
            continue
        said[file.stem] = tokenizer.decode(ids, skip_special_tokens=False)
    for name, text in said.items():
        for word in ("When?", "get_time", "zone", "Now."):
            assert word in text, name
    for name in ("ibm-granite-granite-3.3-2B-Instruct", "HuggingFaceTB-SmolLM3-3B",
                 "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Qwen-Qwen3-0.6B"):  # fmt: skip
        assert name in said, refused
    unclear = {name: error for name, error in refused.items() if not REFUSED.search(error)}
    assert not unclear
    assert len(said) > 6 * len(refused)
