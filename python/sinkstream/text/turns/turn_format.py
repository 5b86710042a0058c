"""What a conversation that keeps its cache feeds for each turn.

A session never renders its history again: behind what its cache holds it feeds what the template
writes for one more message. How a checkpoint's template divides into such parts is found by
rendering short conversations, not by knowing templates.
"""

from __future__ import annotations

from typing import Protocol

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.text.chat import ChatFormat
from sinkstream.text.turns.checks import TEXT
from sinkstream.text.turns.find_difference import find_difference
from sinkstream.text.turns.plain_turns import PlainTurns
from sinkstream.text.turns.template_turns import split_template


class TurnFormat(Protocol):
    """What to feed for each part of a conversation.

    Every part begins where the one before ends: an opening, then messages in any order, and behind
    each reply of the model its closing. Of a message it has to be said what stands before it: the
    role of the message before, "system" right behind an opening with a system text, None right
    behind one without.

    All errors are `InvalidArgument`, or `TypeError` for what is no text, and begin with "session".
    """

    @property
    def is_exact(self) -> bool:
        """Whether the parts, with the replies between them, are the ids of the whole conversation.

        That is, those of `encode_chat` whenever a reply is asked for. White space at the ends of
        replies is left aside: where a template writes or trims some, models write what they have
        learned. So are blank system texts, and replies whose tokens are not those that the
        tokenizer has for their text.
        It is found out with short conversations, before any is held.
        """

    @property
    def difference(self) -> str:
        """A sentence that says how the parts differ from the whole; empty where `is_exact`."""

    def opening(self, system: str | None) -> list[int]:
        """Return the ids in front of the first message.

        Args:
            system: The system text, or None for the template's own, where it has one.
        """

    def user(self, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a user's message and of what asks the model for a reply."""

    def message(self, role: str, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a message that is only read, its end included."""

    def closing(self, last_id: int | None) -> list[int]:
        """Return the ids between a reply of the model and the next message.

        Args:
            last_id: The reply's last token; None if it has none.
        """


def detect_turn_format(text: TextFormat) -> TurnFormat:
    """Find out what a checkpoint's conversations consist of.

    A checkpoint without template has no roles: its session is one growing text, which opens with
    the beginning-of-text token, and in which messages and replies follow each other with nothing
    between them. Without tokenizer there is no text at all: only ids can be fed.

    Raises:
        InvalidArgument: The template fails, refuses a conversation of two turns, or leaves earlier
            messages out.
    """
    if text.tokenizer is None or text.chat_template is None:
        return PlainTurns(text)
    chat = ChatFormat(text, text.tokenizer, text.chat_template, TEXT)
    turns = split_template(chat, text.end_token_ids)
    return turns.with_difference(find_difference(turns))
