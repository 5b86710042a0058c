"""Turns messages into token ids, part by part, exactly as a running conversation would.

A conversation that is found in memory reads only its new messages. One that is not found reads all
of them, by the same parts, so that both have the same ids. The whole is never rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sinkstream.conversations.canonical import without_reasoning
from sinkstream.text.messages import Message
from sinkstream.text.template_turns import Calls
from sinkstream.text.turn_format import TurnFormat


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

_ASKING = ("user", "tool")
"""The roles of messages that the model replies to."""
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
    calls: Calls = (),
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
        calls: Those of the reply before, if it has some.

    Raises:
        InvalidArgument: The template does not allow a message there.
    """
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    earlier = _count_earlier(drops, users[-1] if users else 0, len(messages))
    said = [without_reasoning(one) if i < earlier else one for i, one in enumerate(messages)]
    return _read(turns, said, start, continue_final, has_thoughts, earlier, drops, calls)


def read_earlier(
    turns: TurnFormat,
    messages: Sequence[Message],
    start: StartPoint,
    *,
    has_thoughts: bool,
    drops: Drops,
    calls: Calls = (),
) -> list[int]:
    """Return the ids of canonical messages that end with a reply, as later messages follow them.

    They are those that `read_messages` reads for these messages before a user message, with the
    reply's end.

    Raises:
        InvalidArgument: The template does not allow a message there.
    """
    said = messages if drops == "never" else [*map(without_reasoning, messages)]
    return _read(turns, [*said, _LATER], start, False, has_thoughts, len(messages), drops, calls)


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
    calls: Calls,
) -> list[int]:
    after = start.after
    ids: list[int] = []
    at, end = 0, len(messages) - (messages[-1] is _LATER)
    if start == BEGINNING and end == len(messages) == 1 and messages[0]["role"] == "system":
        return turns.whole(messages)  # a reply follows, which the system text alone asks for
    if start == BEGINNING:
        system = messages[0]["content"] if messages[0]["role"] == "system" else None
        ids += turns.opening(system)
        if system is not None:
            after, at = "system", 1
    elif start.open_reply:
        ids += turns.closing(start.last_id, calls if messages[0]["role"] == "tool" else ())
    while at < end:
        one, left = messages[at], len(messages) - at
        calls = messages[at - 1].get("tool_calls", calls) if at else calls
        following = messages[at + 1] if left > 1 else None
        if continue_final and (left == 1 or (left == 2 and one["role"] in _ASKING)):
            ids += turns.open_reply(*messages[at:], after=after, calls=calls)
            break
        if following is not None and left > 2 and _has_calls(one, following):
            is_earlier = drops == "before_user" and at + 1 < earlier
            ids += turns.exchange(one, following, after=after, is_earlier=is_earlier, calls=calls)
            after, at = "assistant", at + 2
        elif following is not None and left > 2 and _is_reply(one, following):
            if has_thoughts:
                ids += turns.exchange(one, following, after=after, calls=calls)
            else:  # as the model would have read and written it
                ids += turns.request(one, after=after, calls=calls)
                ids += turns.reply(following["content"])
                ids += turns.closing(None)
            after, at = "assistant", at + 2
        else:
            read = turns.request if left == 1 else turns.read
            ids += read(one, after=after, calls=calls)
            after, at = one["role"], at + 1
    return ids


def _has_calls(message: Message, following: Message) -> bool:
    """Return whether `following` calls tools in reply to `message`."""
    has_calls = following["role"] == "assistant" and bool(following.get("tool_calls"))
    return has_calls and message["role"] in _ASKING


def _is_reply(message: Message, following: Message) -> bool:
    """Return whether `following` is text that the model may have written after `message`."""
    is_text = following["role"] == "assistant" and "tool_calls" not in following
    return is_text and message["role"] in _ASKING
