"""What a chat holds: the conversation that goes on, and the copy of one that was kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sinkstream.errors import InvalidArgument
from sinkstream.model import Model
from sinkstream.sessions.session import Session
from sinkstream.streams.stream import Stream

Sinks = int | Literal["system"] | None

MOST = 3
"""Sessions at once: the conversation, the kept copy, and what is about to replace either of them.

Nothing is closed before what replaces it is there, so that an error loses nothing."""


@dataclass
class Conversation:
    """A session, and what it does not remember itself."""

    session: Session
    system: str | None
    """That it was begun with; None where it is the template's own, or not known: a file's."""
    last: Stream | None = None
    """The last turn; None where there is none that could be taken back."""
    has_told_of_eviction: bool = False


class Conversations:
    """The conversation that goes on, and the copy that was kept.

    Every method that raises leaves both as they were.
    """

    def __init__(
        self, model: Model, sinks: Sinks, system: str | None = None, path: Path | None = None
    ) -> None:
        """Begin a conversation, or go on with one that was saved.

        Args:
            model: With `max_sequences` of at least `MOST`.
            sinks: As for `Model.session`.
            system: The system prompt of a new conversation.
            path: The file of a saved one, which has a system prompt of its own.
        """
        self._model = model
        self._sinks = sinks
        self._kept: Conversation | None = None
        self.current = self._new(system) if path is None else self._saved(path)

    def begin(self, system: str | None) -> None:
        """Go on with a new conversation."""
        self._go_on_with(self._new(system))

    def load(self, path: Path) -> None:
        """Go on with a conversation that was saved."""
        self._go_on_with(self._saved(path))

    def fork(self) -> None:
        """Keep a copy, in place of the one kept before."""
        kept, self._kept = self._kept, self._copy_of(self.current)
        if kept is not None:
            kept.session.close()

    def back(self) -> None:
        """Go on from the copy, which stays."""
        if self._kept is None:
            raise InvalidArgument("chat: /back must follow a /fork, but no copy has been kept.")
        self._go_on_with(self._copy_of(self._kept))

    def undo(self) -> None:
        """Make the conversation what it was before its last turn."""
        if self.current.last is None:
            raise InvalidArgument(
                "chat: /undo must follow a reply, and takes one back, but none has come since."
            )
        try:
            self.current.last.cancel(keep="drop")
        except InvalidArgument:
            if self.current.session.stats.evicted_tokens == 0:
                raise
            raise InvalidArgument(
                "chat: /undo must come before a turn has pushed tokens out of the window, which "
                "cannot come back, but this one has. The reply stays."
            ) from None
        self.current.last = None

    def _new(self, system: str | None) -> Conversation:
        return Conversation(self._model.session(system, sinks=self._sinks), system)

    def _saved(self, path: Path) -> Conversation:
        return Conversation(self._model.load_session(path), None)

    def _copy_of(self, conversation: Conversation) -> Conversation:
        return replace(conversation, session=conversation.session.fork(), last=None)

    def _go_on_with(self, conversation: Conversation) -> None:
        former, self.current = self.current, conversation
        former.session.close()
