"""Turns messages into token ids, part by part, exactly as a running conversation would.

A conversation that is found in memory reads only its new messages. One that is not found reads all
of them, by the same parts, so that both have the same ids. The whole is never rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sinkstream.conversations.canonical import without_reasoning
from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import Message
from sinkstream.text.turns.turn_format import TurnFormat


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where in a conversation new messages begin."""

    after: str | None = None
    """The role of the message before; None at the beginning."""
    open_reply: bool = False
    """Whether that is a reply of the model without its closing."""
    last_id: int | None = None
    """The last token of an open reply; None if it is empty."""


BEGINNING = StartPoint()
Drops = Literal["never", "before_user", "always"]
"""When the thoughts of replies leave a conversation: never, before the next user message, or before
any message. Templates of the second kind keep them while the model waits for results of tools."""

_LATER: Message = {"role": "user", "content": ""}
"""Follows what is read, and is not read itself."""


def read_messages(
    turns: TurnFormat,
    messages: Sequence[Message],
    start: StartPoint,
    *,
    continue_final: bool,
    has_thoughts: bool = False,
    drops: Drops = "never",
) -> list[int]:
    """Return the ids of canonical messages, up to the beginning of the model's reply.

    Args:
        turns: The parts of the checkpoint's conversations.
        messages: What to read, at least one.
        start: Where in the conversation they begin.
        continue_final: Whether the last message is the beginning of the reply.
        has_thoughts: Whether the model thinks. If so, earlier replies are written as the template
            writes them, with or without thoughts, not as the model would have written them.
        drops: When the conversation loses the thoughts of earlier replies.

    Raises:
        InvalidArgument: The template does not allow a message there.
    """
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    earlier = _count_earlier(drops, users[-1] if users else 0, len(messages))
    said = [without_reasoning(one) if i < earlier else one for i, one in enumerate(messages)]
    return _read(turns, said, start, continue_final, has_thoughts, earlier, drops)


def read_settled(
    turns: TurnFormat, messages: Sequence[Message], start: StartPoint, drops: Drops
) -> list[int]:
    """Return the ids of canonical messages that end with a reply, as later messages follow them.

    They are those that `read_messages` reads for these messages before a user message.

    Raises:
        InvalidArgument: The template does not allow a message there.
    """
    said = [*map(without_reasoning, messages), _LATER]
    return _read(turns, said, start, False, True, len(messages), drops)


def _count_earlier(drops: Drops, last_user: int, count: int) -> int:
    """Return how many of some messages come before what makes replies lose their thoughts."""
    if drops == "never":
        return 0
    return last_user if drops == "before_user" else count - 1


def _read(
    turns: TurnFormat,
    messages: Sequence[Message],
    start: StartPoint,
    continue_final: bool,
    has_thoughts: bool,
    earlier: int,
    drops: Drops,
) -> list[int]:
    after = start.after
    ids: list[int] = []
    rest = list(messages)
    if start == BEGINNING:
        system = rest[0]["content"] if rest[0]["role"] == "system" else None
        ids += turns.opening(system)
        if system is not None:
            after = "system"
            rest = rest[1:]
            if not rest:
                raise InvalidArgument(
                    "stream: `messages` must have a message after the system prompt, but has none.",
                    param="messages",
                )
    elif start.open_reply:
        ids += turns.closing(start.last_id)
    while rest and rest[0] is not _LATER:
        following = rest[1] if len(rest) > 1 else None
        is_last_reply = len(rest) == 2 and not continue_final
        if len(rest) > 2 and _has_calls(rest[0], rest[1]):
            index_of_call = len(messages) - len(rest) + 1
            is_earlier = drops == "before_user" and index_of_call < earlier
            ids += turns.exchange(rest[0], rest[1], after=after, is_earlier=is_earlier)
            after, rest = "assistant", rest[2:]
            continue
        if following is not None and _is_reply(rest[0], following) and not is_last_reply:
            if has_thoughts and len(rest) > 2:
                ids += turns.exchange(rest[0], following, after=after)
                after, rest = "assistant", rest[2:]
                continue
            # As the model would have read and written it.
            ids += turns.request(rest[0], after=after) + turns.reply(following["content"])
            after = "assistant"
            rest = rest[2:]
            if rest:
                ids += turns.closing(None)
            continue
        if following is not None:
            ids += turns.read(rest[0], after=after)
        elif continue_final:
            raise InvalidArgument(
                "stream: to continue the last message, `messages` must end with a user message and "
                "an assistant message, but does not.",
                param="messages",
            )
        else:
            ids += turns.request(rest[0], after=after)
        after = rest[0]["role"]
        rest = rest[1:]
    return ids


def _has_calls(message: Message, following: Message) -> bool:
    """Return whether `following` calls tools in reply to `message`."""
    has_calls = following["role"] == "assistant" and bool(following.get("tool_calls"))
    return has_calls and message["role"] in ("user", "tool")


def _is_reply(message: Message, following: Message) -> bool:
    """Return whether `following` is text that the model may have written after `message`."""
    is_text = following["role"] == "assistant" and "tool_calls" not in following
    return is_text and message["role"] in ("user", "tool")
