"""What a session feeds if the checkpoint has no chat template, or no tokenizer either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.argument_name import ArgumentName
from sinkstream.text.messages import Message, text_of_parts
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.turns.turn_arguments import MESSAGES, SYSTEM, TEXT, check_role, check_text


@dataclass(frozen=True)
class PlainTurns:
    """Parts of one growing text: each message continues it. See `TurnFormat`."""

    text: TextFormat

    @property
    def is_exact(self) -> bool:
        """Whether the session takes only ids, which need no splitting."""
        return self.text.tokenizer is None

    @property
    def difference(self) -> str:
        """A sentence that says how turns are encoded."""
        if self.is_exact:
            return ""
        return (
            "The checkpoint has no chat template: the session is one growing text without roles, "
            "whose parts are encoded separately."
        )

    def opening(self, system: str | None) -> list[int]:
        """Return the beginning-of-text token, if the checkpoint adds one, and the system text."""
        if system is None:
            return self.text.bos_ids
        return self.text.bos_ids + self._encode(system, SYSTEM, is_first=True)

    def history(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of all texts; the roles have no effect."""
        ids = self.text.bos_ids
        for i, message in enumerate(messages):
            ids = ids + self._encode(_text_of(message), MESSAGES, is_first=i == 0)
        return ids

    def user(self, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a text."""
        return self._encode(content, TEXT, is_first=after is None)

    def message(self, role: str, content: str, *, after: str | None) -> list[int]:
        """Return the ids of the text; the role has no effect."""
        check_role(role)
        return self._encode(content, TEXT, is_first=after is None)

    def request(self, said: Message, *more: Message, after: str | None) -> list[int]:
        """Return the ids of messages' texts."""
        ids = self._encode(_text_of(said), MESSAGES, is_first=after is None)
        for message in more:
            ids = ids + self.reply(_text_of(message))
        return ids

    def read(self, said: Message, *, after: str | None) -> list[int]:
        """Return the ids of a message's text."""
        return self.request(said, after=after)

    def reply(self, content: str) -> list[int]:
        """Return the ids of a text."""
        return self._encode(content, TEXT, is_first=False)

    def exchange(
        self, said: Message, reply: Message, *, after: str | None, is_earlier: bool = False
    ) -> list[int]:
        """Return the ids of two texts."""
        return self.request(said, reply, after=after)

    def earlier_turn(
        self, messages: Sequence[Message], *, after: str | None, before: tuple[str, ...]
    ) -> list[int]:
        """Return the ids of all texts."""
        return self.request(*messages, after=after)

    def closing(self, last_id: int | None) -> list[int]:
        """Return no ids: the text just continues."""
        return []

    def _encode(self, content: str, argument: ArgumentName, *, is_first: bool) -> list[int]:
        content = check_text(content, argument)
        if self.text.tokenizer is None:
            raise InvalidArgument(
                f"{argument} must not be a string, because the checkpoint has no tokenizer. "
                "Pass token ids instead.",
                param=argument.name,
            )
        encoder = plain_encoder(self.text.tokenizer)
        if is_first:
            return encoder.encode(content, argument=argument)
        return encoder.encode_after("a", content, argument=argument)  # any letter: not at the start


def _text_of(message: Message) -> str:
    content = message.get("content")
    if content is None:
        raise InvalidArgument(
            f"{MESSAGES} must have `content` in every message: the checkpoint has no chat "
            "template.",
            param=MESSAGES.name,
        )
    return content if isinstance(content, str) else text_of_parts(content)
