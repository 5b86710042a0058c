"""The sessions of a chat: the current conversation, and the copy kept by /fork."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sinkstream.errors import InvalidArgument
from sinkstream.model import Model
from sinkstream.sessions.session import Session, release_second
from sinkstream.streams.stream import Stream

Sinks = int | Literal["system"] | None

MOST = 3
"""Sessions at once: the current conversation, the kept copy, and a replacement for one of them.

A session is closed only after its replacement exists, so that an error loses nothing."""


@dataclass
class Conversation:
    """A session, and what the chat knows about it."""

    session: Session
    system: str | None
    """The system prompt it started with; None for the template's own, and after /load."""
    last: Stream | None = None
    """The last turn; None if there is no turn to undo."""
    question: str = ""
    """The message of the last turn."""
    tries: int = 0
    """How often the last reply has been replaced."""
    has_reported_eviction: bool = False


class Conversations:
    """The current conversation, and the kept copy.

    A method that raises leaves both unchanged.
    """

    def __init__(
        self, model: Model, sinks: Sinks, system: str | None = None, path: Path | None = None
    ) -> None:
        """Start a conversation, or continue a saved one.

        Args:
            model: With `max_sequences` of at least `MOST`.
            sinks: As for `Model.session`.
            system: The system prompt of a new conversation.
            path: The file of a saved conversation, which has its own system prompt.
        """
        self._model = model
        self._sinks = sinks
        self._kept: Conversation | None = None
        self.current = self._new(system) if path is None else self._saved(path)

    def start(self, system: str | None) -> None:
        """Start a new conversation."""
        release_second(self.current.session)
        self._continue(self._new(system))

    def load(self, path: Path) -> None:
        """Continue a saved conversation."""
        release_second(self.current.session)
        self._continue(self._saved(path))

    def fork(self) -> None:
        """Keep a copy, replacing any earlier one."""
        kept, self._kept = self._kept, self._copy_of(self.current)
        if kept is not None:
            kept.session.close()

    def back(self) -> None:
        """Continue from the copy, which is kept."""
        if self._kept is None:
            raise InvalidArgument("chat: /back must follow a /fork, but no copy exists.")
        release_second(self.current.session)
        self._continue(self._copy_of(self._kept))

    def undo(self, command: str = "/undo") -> None:
        """Restore the conversation to its state before the last turn.

        Args:
            command: What the user typed, for errors.
        """
        if self.current.last is None:
            raise InvalidArgument(
                f"chat: {command} must follow a reply, but there is no reply to remove."
            )
        try:
            self.current.last.cancel(keep="drop")
        except InvalidArgument:
            if self.current.session.stats.evicted_tokens == 0:
                raise
            raise InvalidArgument(
                f"chat: {command} must not follow a turn that has evicted tokens, but this one "
                "has. "
                "Evicted tokens cannot be restored; the reply stays."
            ) from None
        self.current.last = None

    def _new(self, system: str | None) -> Conversation:
        return Conversation(self._model.session(system, sinks=self._sinks), system)

    def _saved(self, path: Path) -> Conversation:
        return Conversation(self._model.load_session(path), None)

    def _copy_of(self, conversation: Conversation) -> Conversation:
        return replace(conversation, session=conversation.session.fork(), last=None)

    def _continue(self, conversation: Conversation) -> None:
        former, self.current = self.current, conversation
        former.session.close()
