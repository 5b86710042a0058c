"""The generic form of tools, for chat templates that have no place for them.

Messages are rewritten into ones that every template reads: the tools are a part of the system text,
calls a part of the assistant's text, and results are messages of the user. Calls are written as
most models with tools have learned to write them, but the words around them are our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import Message, text_of_parts
from sinkstream.text.tools.call_format import CallFormat

GENERIC_CALLS = CallFormat(
    trigger="<tool_call>",
    is_bare=False,
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
    end="}\n</tool_call>",
    markers={},
    has_short_ids=False,
)
"""How a model calls tools in the generic form."""
# A small model repeats what it reads: the example names no function, and text comes first.
_TOOLS = """\
Answer in plain text. Only if a function below helps, call it instead, like this:
<tool_call>
{{"name": "function", "arguments": {{"argument": "value"}}}}
</tool_call>
Its result comes in <tool_response>. The functions are:
<tools>
{tools}
</tools>"""
_MOST_JSON = 6_000
"""Characters of definitions that are written as JSON, about 1,500 tokens. More tools, such as the
dozens of a chat program, would take most of what a small model sees: of these, only signatures are
written. The grammar still enforces their arguments."""
_MOST_VALUES = 8  # of an enumeration that a signature names
_RESULT = "<tool_response>\n{result}\n</tool_response>"
_WORDS = ("Placeholderone", "Placeholdertwo", "Placeholderthree")
_IDS = ("call_placeholder0", "plchldr00")

Render = Callable[[Sequence[Message]], str]


@dataclass(frozen=True)
class TemplateReads:
    """Which messages a template reads. Each answer is found by rendering, when it is needed."""

    source: str
    render: Render
    """Renders messages without a generation prompt, or raises `InvalidArgument`."""

    def _written(self, *messages: Message) -> str:
        try:
            return self.render(messages)
        except InvalidArgument:
            return ""

    @cached_property
    def has_calls(self) -> bool:
        """Return whether it writes tool calls."""
        if "tool_calls" not in self.source:
            return False
        function = {"name": _WORDS[1], "arguments": {}}
        written = (
            self._written(
                _said("user", _WORDS[0]),
                {**_said("assistant", ""), "tool_calls": [call | {"function": given}]},
            )
            for call in ({"id": one, "type": "function"} for one in _IDS)
            for given in (function, {**function, "arguments": "{}"})
        )
        return any(_WORDS[1] in one for one in written)

    @cached_property
    def has_results(self) -> bool:
        """Return whether it writes messages with the role "tool"."""
        words = (_said("user", _WORDS[0]), _said("assistant", _WORDS[1]), _said("tool", _WORDS[2]))
        return _WORDS[2] in self._written(*words)

    @cached_property
    def has_system(self) -> bool:
        """Return whether it writes a system text."""
        written = self._written(_said("system", _WORDS[0]), _said("user", _WORDS[1]))
        return _WORDS[0] in written and _WORDS[1] in written

    @cached_property
    def has_neighbours(self) -> bool:
        """Return whether it writes two messages of the user without a reply in between."""
        written = self._written(_said("user", _WORDS[0]), _said("user", _WORDS[1]))
        return _WORDS[0] in written and _WORDS[1] in written

    @cached_property
    def default_system(self) -> str:
        """Return the system text that it writes if a conversation has none; "" for none."""
        if not self.has_system:
            return ""
        given = self._written(_said("system", _WORDS[0]), _said("user", _WORDS[1]))
        before, _, rest = given.partition(_WORDS[0])
        own = self._written(_said("user", _WORDS[1]))
        if not own.startswith(before) or not own.endswith(rest):
            return ""
        return own[len(before) : len(own) - len(rest)]


def generic_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], reads: TemplateReads
) -> list[Message]:
    """Return a conversation with tools, or with calls, as one that the template reads.

    Args:
        messages: Well-formed messages.
        tools: What the model may call; may be empty, while the conversation still has calls.
        reads: What the template reads. Without tools, what it reads itself is left to it.
    """
    said = [_without_calls(message) for message in messages]
    if tools or not reads.has_results:
        said = list(_with_results(said, reads))
    return _with_tools(said, tools, reads) if tools else said


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else text_of_parts(content)


def _without_calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    if calls is None:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    parts = [_text(message), *map(_call, calls)]
    return {**rest, "content": "\n".join(filter(None, parts))}


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    given = function if isinstance(function, Mapping) else {}
    name, arguments = given.get("name"), given.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    form = GENERIC_CALLS
    return f"{form.begin}{name}{form.middle}{arguments or '{}'}{form.end}"


def _with_results(messages: Sequence[Message], reads: TemplateReads) -> Iterator[Message]:
    """Yield the messages, with results as messages of the user.

    If the template demands replies between these, a result joins its neighbours.
    """
    pending: dict[str, Any] | None = None
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            message = _said("user", _RESULT.format(result=_text(message)))
        are_users = pending is not None and message["role"] == pending["role"] == "user"
        if pending and are_users and (is_result or was_result) and not reads.has_neighbours:
            pending = {**pending, "content": f"{_text(pending)}\n{_text(message)}"}
        else:
            if pending is not None:
                yield pending
            pending = dict(message)
        was_result = is_result
    if pending is not None:
        yield pending


def _with_tools(
    messages: list[Message], tools: Sequence[Mapping[str, Any]], reads: TemplateReads
) -> list[Message]:
    """Add the tools to the system text; without a place for one, to the first user message."""
    definitions = _TOOLS.format(tools=_definitions([tool["function"] for tool in tools]))
    is_system = messages[0]["role"] in ("system", "developer")
    if is_system and (reads.has_system or messages[0]["role"] == "developer"):
        first, rest = messages[0], messages[1:]
        text = _text(first)
    elif reads.has_system:
        text, first, rest = reads.default_system, _said("system", ""), messages
    else:
        at = next((i for i, one in enumerate(messages) if one["role"] == "user"), None)
        if at is None:
            return [_said("user", definitions), *messages]
        user = messages[at]
        asked = {**user, "content": f"{definitions}\n\n{_text(user)}"}
        return [*messages[:at], asked, *messages[at + 1 :]]
    return [{**first, "content": f"{text}\n\n{definitions}" if text else definitions}, *rest]


def _definitions(functions: Sequence[Mapping[str, Any]]) -> str:
    written = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    return written if len(written) <= _MOST_JSON else "\n".join(map(_signature, functions))


def _signature(function: Mapping[str, Any]) -> str:
    """Return a line such as `get_weather(city: string, days?: integer): Tell the weather.`."""
    schema = function.get("parameters") or {}
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    arguments = (
        f"{name}{'' if name in required else '?'}: {_type_of(each)}"
        for name, each in properties.items()
    )
    text = " ".join(str(function.get("description") or "").split())
    first = text.partition(". ")[0].rstrip(".")
    return f"{function['name']}({', '.join(arguments)})" + (f": {first}." if first else "")


def _type_of(schema: Any) -> str:
    """Return the type of an argument in few words."""
    if not isinstance(schema, Mapping):
        return "any"
    values = schema.get("enum")
    if isinstance(values, list) and len(values) <= _MOST_VALUES:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    parts = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(parts, list):
        return " | ".join(dict.fromkeys(map(_type_of, parts)))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    if kind != "array":
        return str(kind)
    item = _type_of(schema.get("items"))
    return f"({item})[]" if " " in item else f"{item}[]"
