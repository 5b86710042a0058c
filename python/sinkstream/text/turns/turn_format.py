"""What a session feeds for each turn of a conversation whose cache it keeps.

A session never renders its history again: it appends what the template writes for one more message
to its cache. Rendering short conversations shows how a checkpoint's template splits into such
parts; no template is known by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sinkstream.text.chat import ChatFormat
from sinkstream.text.messages import Message
from sinkstream.text.turns.find_difference import (
    find_difference,
    find_difference_without_thoughts,
)
from sinkstream.text.turns.template_turns import TemplateTurns, split_template


class TurnFormat(Protocol):
    """The token ids of each part of a conversation.

    The parts follow each other: an opening, then messages in any order, and after each reply of the
    model its closing. `after` says what precedes a message: the role of the previous message,
    "system" directly after an opening with a system text, None directly after one without.

    All errors are `InvalidArgument`, or `TypeError` for a value that is not a string, and begin
    with "session".
    """

    @property
    def is_exact(self) -> bool:
        """Whether the parts and the replies, concatenated, equal the whole conversation's ids.

        The whole is what `encode_chat` gives at each request for a reply. Three cases are excluded:
        white space at the ends of replies, which a template may add or trim while the model writes
        what it learned; blank system texts; and replies whose tokens are not the tokenizer's
        encoding of their text. Detected with short conversations, before the first turn.
        """

    @property
    def difference(self) -> str:
        """A sentence saying how the parts differ from the whole; empty if `is_exact`."""

    def opening(self, system: str | None) -> list[int]:
        """Return the ids before the first message.

        Args:
            system: The system text, or None for the template's default, if it has one.
        """

    def whole(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation and the generation prompt."""

    def history(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation, from its beginning to where a user message follows.

        Args:
            messages: At least one message, as `check_messages` returns them.
        """

    def user(self, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a user message and of the generation prompt."""

    def message(self, role: str, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a message that needs no reply, including its end."""

    def request(self, said: Message, *more: Message, after: str | None) -> list[int]:
        """Return the ids of messages, as `check_messages` returns them, and the generation prompt.

        They may be of any role. Several are results of calls, which a template may join.
        """

    def read(self, said: Message, *, after: str | None) -> list[int]:
        """Return the ids of such a message if it needs no reply, including its end."""

    def reply(self, content: str) -> list[int]:
        """Return the ids of a reply that is given as text, between generation prompt and closing.

        They are the tokenizer's encoding; the model may have written the same text in other tokens.
        """

    def open_reply(self, said: Message, *more: Message, after: str | None) -> list[int]:
        """Return the ids of messages, the last one a reply, up to its text, which is continued."""

    def exchange(
        self, said: Message, reply: Message, *, after: str | None, is_earlier: bool = False
    ) -> list[int]:
        """Return the ids of a message and the reply to it, as earlier turns are written.

        Both are as `check_messages` returns them. The ids include the reply's end. A generation
        prompt may differ from how earlier replies begin.

        Args:
            said: The message.
            reply: The reply.
            after: What precedes the message.
            is_earlier: Whether a user message follows, too, if the reply calls tools: not only the
                results.
        """

    def earlier_turn(
        self, messages: Sequence[Message], *, after: str | None, before: tuple[str, ...]
    ) -> list[int]:
        """Return the ids of messages, the last one a reply, as earlier turns are written.

        Args:
            messages: As `check_messages` returns them: a question, and a reply to it; or with calls
                and results between these.
            after: What precedes them.
            before: The roles of the messages that follow, "user" or "tool". Results are taken for
                a user message if the template does not allow them there.
        """

    def closing(self, last_id: int | None) -> list[int]:
        """Return the ids between a reply of the model and the next message.

        Args:
            last_id: The reply's last token; None if the reply is empty.
        """


def turn_format_of(chat: ChatFormat, end_token_ids: frozenset[int]) -> TurnFormat:
    """Detect the parts of conversations in a template's format.

    Raises:
        InvalidArgument: The template fails, refuses a conversation of two turns, or omits earlier
            messages.
    """
    turns = split_template(chat, end_token_ids)
    return turns.with_difference(find_difference(turns))


def difference_of(turns: TurnFormat, *, drops_thoughts: bool) -> str:
    """Return how a session's parts differ from the whole, as a sentence; "" if they do not."""
    if drops_thoughts and isinstance(turns, TemplateTurns):
        return find_difference_without_thoughts(turns)
    return turns.difference
