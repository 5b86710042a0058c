"""Chat messages in OpenAI's form: checks, and the copies that templates get.

Also of the arguments of sessions that become messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.cancellation import check_wanted
from sinkstream.request.checks import PROMPT, ArgumentName, lone_surrogate
from sinkstream.text.plain_text import check_characters


@dataclass(slots=True)
class ToolCall:
    """A tool call in a reply."""

    id: str
    """Chosen at random when the call begins. The message with the tool's result repeats it."""
    name: str
    arguments: str = ""
    """A JSON object as text: the part that has been read."""

    def as_message(self) -> dict[str, Any]:
        """Return it as an item of `tool_calls` in the assistant's message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


Message = Mapping[str, Any]

CONTENT = ArgumentName("session", "content")
MESSAGES = ArgumentName("session", "messages")
SYSTEM = ArgumentName("session", "system")
TEXT = ArgumentName("session", "text")

ROLES = ("assistant", "developer", "system", "tool", "user")
# The names of a message's reasoning, in the order in which transformers reads them.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_STRINGS = ("name", "tool_call_id", *_REASONING)
# What a template may read, and what clients must not think that it reads.
_READ = ("role", "content", "tool_calls", *_STRINGS, "audio", "function_call")
# What OpenAI's replies also contain, and what must not be in use.
_EMPTY = ("annotations", "audio", "function_call", "refusal")
_NAMES = tuple(sorted(("content", "role", "tool_calls", *_STRINGS, *_EMPTY)))
_MAX_DEPTH = 64  # of the data in tool calls


def check_messages(messages: Sequence[Any], argument: ArgumentName = PROMPT) -> list[Message]:
    """Return a conversation as plain data, as transformers gives it to a template.

    Raises:
        TypeError: It is not a list of mappings, or a value has the wrong type.
        InvalidArgument: It is empty, or a message is malformed.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(
            f"{argument} must be a list of messages, but is of type {type(messages).__name__}."
        )
    if not messages:
        raise InvalidArgument(f"{argument} must have at least one message.", param=argument.name)
    return [
        dict(message) if _is_plain(message) else _Check(argument, i).message(message)
        for i, message in enumerate(messages)
    ]


def _is_plain(message: Any) -> bool:
    """Return whether a message is just a role and a string, without faults, as nearly all are."""
    if type(message) is not dict or len(message) != 2:
        return False
    text, role = message.get("content"), message.get("role")
    if type(text) is not str or type(role) is not str or role not in ROLES:
        return False
    return lone_surrogate(text) is None


def without_unknown(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without fields that no template reads, such as clients' marks for caches."""
    known = []
    for message in messages:
        check_wanted()
        known.append(_without_unknown(message))
    return known


def _without_unknown(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str) and "role" in message:  # nearly all
        return {"role": message["role"], "content": content}
    known = {name: message[name] for name in _READ if name in message}
    if isinstance(content, list):
        known["content"] = [_known_part(part) for part in content]
    return known


def _known_part(part: Any) -> Any:
    is_text = isinstance(part, Mapping) and part.get("type") == "text" and "text" in part
    return {"type": "text", "text": part["text"]} if is_text else part


def is_message(value: Any) -> bool:
    """Return whether a value is meant as a message: a mapping, or one of OpenAI's objects."""
    return isinstance(value, Mapping) or callable(getattr(value, "model_dump", None))


def text_of_parts(parts: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a list of parts, one per line, as other servers join them."""
    return "\n".join(part["text"] for part in parts)


def text_of(message: Message) -> str:
    """Return the text of a message; "" if it has none."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else text_of_parts(content)


class _Check:
    """Checks one message."""

    def __init__(self, argument: ArgumentName, index: int) -> None:
        self._param = argument.name
        self._where = f"{argument.call}: message {index} of `{argument.name}`"

    def message(self, message: Any) -> Message:
        if not isinstance(message, Mapping) and is_message(message):
            message = message.model_dump()
        if not isinstance(message, Mapping):
            raise self._wrong_type("", "a mapping", message)
        self._check_names(message)
        # Without what is None, as transformers leaves it out: templates write None as a word.
        fields = {str.__str__(name): self._field(name, message[name]) for name in message}
        checked = {name: value for name, value in fields.items() if value is not None}
        content = checked.get("content")
        if content is None and not checked.get("tool_calls"):
            raise self._wrong_type(": `content`", "a string or a list of parts", content)
        reasoning = next((r for name in _REASONING if (r := checked.get(name)) is not None), None)
        if reasoning is not None:
            checked = {"thinking": reasoning, **checked, "reasoning_content": reasoning}
        return checked

    def _check_names(self, message: Mapping[Any, Any]) -> None:
        names = {name for name in message if isinstance(name, str)}
        if "role" not in names or not names & {"content", "tool_calls"}:
            shown = ", ".join(sorted(f"`{name}`" for name in map(str, message))) or "nothing"
            raise self._refusal(f" must have `content` and `role`, but has {shown[:200]}.")
        for name in message:
            if name not in _NAMES:
                raise self._refusal(
                    f" must have only the keys {', '.join(_NAMES)}, but has {repr(name)[:40]}."
                )

    def _field(self, name: str, value: Any) -> Any:
        if name == "role":
            return self._role(value)
        if value is None:
            return None
        where = f": `{name}`"
        if name in _EMPTY:
            if value or isinstance(value, bool | int | float):
                raise self._refusal(f"{where} must be None or empty. Only text is supported.")
        elif name in _STRINGS:
            if not isinstance(value, str):
                raise self._wrong_type(where, "a string", value)
        elif name == "tool_calls":
            if not isinstance(value, list | tuple):
                raise self._wrong_type(where, "a list of mappings", value)
            for i, call in enumerate(value):
                if not isinstance(call, Mapping):
                    raise self._wrong_type(f": call {i} of `{name}`", "a mapping", call)
        elif not isinstance(value, str):
            return self._parts(value)
        return self._data(value, where, 0)

    def _role(self, role: Any) -> str:
        if not isinstance(role, str) or role not in ROLES:
            raise self._refusal(
                f": `role` must be one of {', '.join(ROLES)}, but is {repr(role)[:40]}."
            )
        return str.__str__(role)

    def _parts(self, parts: Any) -> list[dict[str, str]]:
        if not isinstance(parts, list | tuple):
            raise self._wrong_type(": `content`", "a string or a list of parts", parts)
        return [self._part(part, f": part {i} of `content`") for i, part in enumerate(parts)]

    def _part(self, part: Any, where: str) -> dict[str, str]:
        if not isinstance(part, Mapping):
            raise self._wrong_type(where, "a mapping", part)
        if (kind := part.get("type")) != "text":
            raise self._refusal(
                f'{where}: `type` must be "text", but is {repr(kind)[:40]}. Only text is supported.'
            )
        for name in part:
            if name not in ("text", "type"):
                raise self._refusal(
                    f"{where} must have only the keys `text` and `type`, but has {repr(name)[:40]}."
                )
        if not isinstance(part.get("text"), str):
            raise self._wrong_type(f"{where}: `text`", "a string", part.get("text"))
        return {"type": "text", "text": self._string(part["text"], f"{where}: `text`")}

    def _data(self, value: Any, where: str, depth: int) -> Any:
        """Return plain data. Templates get no subclasses, which may carry methods."""
        if depth > _MAX_DEPTH:
            raise self._refusal(
                f"{where} must be nested at most {_MAX_DEPTH} levels deep, but is nested deeper."
            )
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._string(value, where)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, list | tuple):
            return [self._data(part, where, depth + 1) for part in value]
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise self._wrong_type(f"{where}: a key", "a string", name)
            return {
                self._string(name, where): self._data(part, where, depth + 1)
                for name, part in value.items()
            }
        raise self._wrong_type(where, "JSON-serializable", value)

    def _string(self, text: str, where: str) -> str:
        check_characters(text, self._where + where)
        return str.__str__(text)

    def _refusal(self, rule: str) -> InvalidArgument:
        return InvalidArgument(self._where + rule, param=self._param)

    def _wrong_type(self, where: str, kind: str, value: Any) -> TypeError:
        return TypeError(
            f"{self._where}{where} must be {kind}, but is of type {type(value).__name__}."
        )


def check_text(content: str, argument: ArgumentName) -> str:
    """Return the content of a message as a plain `str`.

    Raises:
        TypeError: It is not a string.
        InvalidArgument: It has a lone surrogate.
    """
    if not isinstance(content, str):
        raise TypeError(f"{argument} must be a string, but is of type {type(content).__name__}.")
    check_characters(content, argument)
    return str.__str__(content)  # templates get plain strings: subclasses may carry methods


def check_results(content: Any) -> list[Message] | None:
    """Return the results of calls as plain data; None if the content is not a list of messages.

    Raises:
        TypeError: It is a single message, or a message in it has a value of the wrong type.
        InvalidArgument: A message is malformed, or its role is not "tool".
    """
    if is_message(content):
        raise TypeError(
            f"{CONTENT} must be a string, token ids or a list of results, but is a message. Wrap "
            "one result in a list."
        )
    is_list = isinstance(content, Sequence) and not isinstance(content, str | bytes)
    if not is_list or not any(map(is_message, content[:1])):
        return None
    results = check_messages(content, CONTENT)
    for i, message in enumerate(results):
        if message["role"] != "tool":
            raise InvalidArgument(
                f'session: message {i} of `content` must have the role "tool", but has the role '
                f'"{message["role"]}". Send the text of a user message as a string.',
                param=CONTENT.name,
            )
    return results


def check_content(content: Any) -> None:
    """Refuse the content of a turn that is neither a string nor a sequence of ids.

    Raises:
        TypeError: It is something else; a message and a list of messages are named as such.
    """
    is_list = isinstance(content, Sequence) and any(map(is_message, content[:1]))
    if is_message(content) or is_list:
        found = "a list of messages" if is_list else "a message"
        raise TypeError(
            f"{CONTENT} must be a string or token ids, but is {found}. Send the text of one "
            "message; earlier messages go to `model.session(messages=…)`."
        )
    if isinstance(content, bytes) or not hasattr(content, "__iter__"):
        found = "None" if content is None else f"of type {type(content).__name__}"
        raise TypeError(f"{CONTENT} must be a string or token ids, but is {found}.")


def check_history(
    system: str | None, messages: Sequence[Any] | None
) -> tuple[str | None, list[Message]]:
    """Return a system prompt and a conversation that begins with it, or [] if there is none.

    Raises:
        TypeError: A value has the wrong type.
        InvalidArgument: A message is malformed, or there are two system prompts.
    """
    if messages is None or (isinstance(messages, Sequence) and not messages):
        return system, []
    history = check_messages(messages, MESSAGES)
    if history[0]["role"] != "system":
        first = (
            [] if system is None else [{"role": "system", "content": check_text(system, SYSTEM)}]
        )
        return system, [*first, *history]
    if system is not None:
        raise InvalidArgument(
            f"{SYSTEM} must be None if `messages` begins with a system prompt, but is given.",
            param=SYSTEM.name,
        )
    return text_of(history[0]), history


def check_role(role: str) -> str:
    """Return a role as a plain `str`.

    Raises:
        InvalidArgument: There is no such role.
    """
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidArgument(
            f"session: `role` must be one of {', '.join(ROLES)}, but is {repr(role)[:40]}.",
            param="role",
        )
    return str.__str__(role)
