"""Checks the text and role arguments of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import ArgumentName
from sinkstream.text.messages import ROLES, Message, check_messages, is_message, text_of
from sinkstream.text.plain_text import check_characters

CONTENT = ArgumentName("session", "content")
MESSAGES = ArgumentName("session", "messages")
SYSTEM = ArgumentName("session", "system")
TEXT = ArgumentName("session", "text")


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
