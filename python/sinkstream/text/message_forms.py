"""How a chat template reads messages; they are converted to the form that it reads.

OpenAI's messages have content as a string or as a list of text parts. Most templates read only
strings, some only parts, some both. OpenAI's tool calls have arguments as JSON text. Most templates
read objects, which they write as JSON or in a way of their own; some read either. A message that
only calls tools has no content, which some templates read nevertheless: these get an empty string.
Short conversations show which; no template is known by name. A reply that continues the last
message needs its text where the template writes it, without what follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import ArgumentName
from sinkstream.text.messages import Message, text_of_parts
from sinkstream.text.unfinished_json import closed_json

if TYPE_CHECKING:
    from sinkstream.text.templates.traced_text import TracedText

ContentForm = Literal["string", "parts", "either"]
ArgumentForm = Literal["text", "object", "either"]
Render = Callable[[Sequence[Message]], str]
"""Renders messages, or raises `InvalidArgument`."""

_WORD = "Placeholder"
_KEY, _VALUE = "Placeholderkey", "Placeholdervalue"
_MAX_DEPTH = 64
_OPTIONAL_ROLES = frozenset({"developer", "system", "tool"})
# Conversations in which a message of each role is the last but one or the last.
_PROBES: dict[str, tuple[str, ...]] = {
    "developer": ("developer", "user"),
    "system": ("system", "user"),
    "user": ("user",),
    "assistant": ("user", "assistant"),
    "tool": ("user", "assistant", "tool"),
}


class ContentForms:
    """Converts content to the form that a template reads."""

    def __init__(self, source: str, render: Render) -> None:
        """Remember a template and the function that renders it, or raises `InvalidArgument`."""
        self._may_read_parts = "text" in source
        self._render = render
        self._known: dict[str, ContentForm] = {}
        self._omitted: set[str] = set()
        self._needs_content: bool | None = None

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, with their content in the form that the template reads."""
        return [self._applied(message) for message in messages]

    def omitted(self, messages: Sequence[Message]) -> str | None:
        """Return a role whose messages the template leaves out without refusing them, if any."""
        roles = _OPTIONAL_ROLES & {message["role"] for message in messages}
        for role in roles:
            self._form(role)
        return min(self._omitted & roles, default=None)

    def _applied(self, message: Message) -> Message:
        content = message.get("content")
        if content is None:
            return {**message, "content": ""} if self._is_needed() else message
        if isinstance(content, str):
            if self._may_read_parts and self._form(message["role"]) == "parts":
                return {**message, "content": _as_parts(content)}
        elif self._form(message["role"]) == "string":
            return {**message, "content": text_of_parts(content)}
        return message

    def _is_needed(self) -> bool:
        """Return whether the template fails on calls without content, but not on empty content."""
        if self._needs_content is None:
            with_content = self._probe_calls({"content": ""})
            self._needs_content = with_content and not self._probe_calls({})
        return self._needs_content

    def _probe_calls(self, said: Message) -> bool:
        """Return whether the template writes a message with a call."""
        arguments: tuple[Any, ...] = ({}, "{}")
        return any(
            _rendered(self._render, [*_called(given, call_id, said), _RESULT]) is not None
            for given in arguments
            for call_id in _CALL_IDS
        )

    def _form(self, role: str) -> ContentForm:
        if role not in self._known:
            form: ContentForm = "string"
            string, parts = (self._probe(role, as_parts) for as_parts in (False, True))
            word = _WORD + role
            if word in (string or ""):
                form = "either" if parts == string else "string"
            elif word in (parts or ""):
                form = "parts"
            elif string is not None and word.casefold() not in string.casefold():
                self._omitted.add(role)
            self._known[role] = form  # now that it is certain: other threads may be rendering
        return self._known[role]

    def _probe(self, role: str, as_parts: bool) -> str | None:
        """Return the rendering of a short conversation, or None if the template fails."""
        messages: list[dict[str, Any]] = []
        for other in _PROBES[role]:
            in_parts = as_parts if other == role else self._form(other) == "parts"
            word = _WORD + other
            content = _as_parts(word) if in_parts else word
            messages.append({"role": other, "content": content})
        return _rendered(self._render, messages)


def _rendered(render: Render, messages: Sequence[Message]) -> str | None:
    """Return what a template writes; None if it fails."""
    try:
        return render(messages)
    except InvalidArgument:
        return None


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


_CALL_IDS = ("call_placeholder0", "plchldr00")  # Mistral's templates accept only nine characters

_RESULT = {"role": "tool", "content": "Placeholder", "name": "placeholder"}


def _called(arguments: Any, call_id: str, said: Message) -> list[Message]:
    """Return a short conversation that ends with a call."""
    function = {"name": "placeholder", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "user", "content": _WORD},
        {"role": "assistant", **said, "tool_calls": [call]},
    ]


class ArgumentForms:
    """Converts arguments to the form that a template reads."""

    def __init__(self, source: str, render: Render) -> None:
        """Remember a template and the function that renders it, or raises `InvalidArgument`."""
        self._has_calls = "tool_calls" in source
        self._render = render
        self._known: ArgumentForm | None = None

    def apply(self, messages: Sequence[Message], argument: ArgumentName) -> list[Message]:
        """Return the messages, with arguments in the form that the template reads.

        Raises:
            InvalidArgument: The template reads objects, and arguments are not one.
        """
        if not self._has_calls:
            return list(messages)
        return [
            self._applied(message, f"{argument.call}: message {i} of `{argument.name}`", argument)
            for i, message in enumerate(messages)
        ]

    def _applied(self, message: Message, where: str, argument: ArgumentName) -> Message:
        calls = message.get("tool_calls")
        if not calls or self._form() == "either":
            return message
        return {**message, "tool_calls": [self._call(call, where, argument) for call in calls]}

    def _call(self, call: Any, where: str, argument: ArgumentName) -> Any:
        function = call.get("function")
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        given = function["arguments"]
        if self._form() == "text" and isinstance(given, dict):
            given = json.dumps(given, ensure_ascii=False)
        elif self._form() == "object" and isinstance(given, str):
            given = _object(given, where, argument)
        return {**call, "function": {**function, "arguments": given}}

    def _form(self) -> ArgumentForm:
        if self._known is None:
            text = self._written(json.dumps({_KEY: _VALUE}))
            mapping = self._written({_KEY: _VALUE})
            # Set once it is certain: other threads may be rendering.
            self._known = _form_of(text, mapping)
        return self._known

    def _written(self, arguments: Any) -> str:
        """Return the rendering of a call with arguments in this form; "" if the template fails."""
        for call_id in _CALL_IDS:
            written = _rendered(self._render, _called(arguments, call_id, {"content": ""}))
            if written is not None:
                return written
        return ""


def _form_of(text: str, mapping: str) -> ArgumentForm:
    """Return which arguments a template reads, by its renderings of text and of a mapping."""
    if not _is_json(text):
        return "object"
    if _is_json(mapping):
        return "either"
    is_own_way = all(word in mapping for word in (_KEY, _VALUE)) and f"'{_KEY}'" not in mapping
    return "object" if is_own_way else "text"  # in quotes, it is only what Python shows


def _is_json(written: str) -> bool:
    """Return whether arguments are written as JSON, without extra quotes."""
    return f'"{_KEY}": "{_VALUE}"' in written or f'"{_KEY}":"{_VALUE}"' in written


def _object(text: str, where: str, argument: ArgumentName) -> dict[str, Any]:
    """Return arguments as an object; those that `max_tokens` has cut off are closed."""
    if not text.strip():
        return {}
    value = _parsed(text)
    if value is None or not _is_shallow(value, 0):
        value = _parsed(closed_json(text, _MAX_DEPTH))
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"{where}: `arguments` of a tool call must be a JSON object, but are not.",
            param=argument.name,
        )
    return value


def _parsed(text: str) -> Any:
    """Return what JSON says; None if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")


def _is_shallow(value: Any, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        return False
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_is_shallow(part, depth + 1) for part in parts)


# Follows the text. The space at its end shows whether the template trims the message.
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def check_open(messages: Sequence[Message], argument: ArgumentName) -> None:
    """Refuse a last message that no reply can continue.

    Raises:
        InvalidArgument: It is not the assistant's, or calls tools.
    """
    last = messages[-1]
    if last["role"] != "assistant":
        raise _refusal(f'have the role "assistant", but has the role "{last["role"]}"', argument)
    if last.get("tool_calls"):
        raise _refusal("have no `tool_calls`, but has some", argument)


def marked(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a mark after the text of the last one."""
    *earlier, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + _MARK}]
    *parts, part = content
    return [*earlier, {**last, "content": [*parts, {**part, "text": part["text"] + _MARK}]}]


def cut(written: TracedText, messages: Sequence[Message], argument: ArgumentName) -> TracedText:
    """Return a rendering of marked messages up to the mark, without it.

    White space at the end of the text is left out if the template trims the message.

    Raises:
        InvalidArgument: The template does not write the last message's text there.
    """
    content = messages[-1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    at = str.rfind(written, _MARK.strip())
    kept = written[: max(0, at)]
    if str.__str__(written[at : at + len(_MARK)]) != _MARK:
        kept = kept.rstrip()
    if at < 0 or not str.__str__(kept).rstrip().endswith(text.strip()):
        raise _refusal(
            "have text that the checkpoint's chat template writes unchanged, but the template "
            "changes it or leaves it out",
            argument,
        )
    return kept


def _refusal(rule: str, argument: ArgumentName) -> InvalidArgument:
    return InvalidArgument(
        f"{argument.call}: to be continued, the last message of `{argument.name}` must {rule}.",
        param=argument.name,
    )
