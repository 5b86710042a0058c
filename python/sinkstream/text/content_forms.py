"""How a chat template reads the content of messages: as a string, or as a list of text parts.

OpenAI's messages have either. Most templates read only strings, some only parts, some both. Short
conversations show which; no template is known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import Message, text_of_parts

Form = Literal["string", "parts", "either"]

_WORD = "Placeholder"
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

    def __init__(self, source: str, render: Callable[[Sequence[Message]], str]) -> None:
        """Remember a template and the function that renders it, or raises `InvalidArgument`."""
        self._may_read_parts = "text" in source
        self._render = render
        self._known: dict[str, Form] = {}
        self._omitted: set[str] = set()

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, with their content in the form that the template reads."""
        return [self._applied(message) for message in messages]

    def omitted(self, messages: Sequence[Message]) -> str | None:
        """Return a role whose messages the template leaves out without refusing them, if any."""
        for role in _OPTIONAL_ROLES & {message["role"] for message in messages}:
            self._form(role)
        return min(self._omitted & _OPTIONAL_ROLES, default=None)

    def _applied(self, message: Message) -> Message:
        content = message.get("content")
        if isinstance(content, str):
            if self._may_read_parts and self._form(message["role"]) == "parts":
                return {**message, "content": _as_parts(content)}
        elif content is not None and self._form(message["role"]) == "string":
            return {**message, "content": text_of_parts(content)}
        return message

    def _form(self, role: str) -> Form:
        if role not in self._known:
            form: Form = "string"
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
        try:
            return self._render(messages)
        except InvalidArgument:
            return None


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
