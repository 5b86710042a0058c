"""Which conversations this process may write: the one place that thinks of other processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.promises import Promises
from sinkstream.conversations.residency import plain_wait
from sinkstream.conversations.running_turns import RunningTurns
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import Waiting

Noted = Callable[[], AbstractContextManager[None]]
"""Gives a block whose errors are noted, and end nothing else."""


class Fence:
    """Of the only process that uses a store: it may write everything, and nothing is remembered.

    `cluster/` has the fence of processes that share a store. Any thread may call it.
    """

    def __init__(self, store: Store, replica: str = "") -> None:
        self.store = store
        self.promises = Promises(store, replica)
        self.waiting: Waiting = plain_wait
        """What a thread is in while it waits for another thread, or for another process."""

    def watch(self, running: RunningTurns) -> None:
        """Begin to look after the conversations of this process; called once."""

    def begin(self, conversation: str) -> ConversationWriter:
        """Return the writer of a conversation that begins here."""
        return ConversationWriter(self.store, conversation)

    def held(self, conversation: str) -> ConversationWriter | None:
        """Return the writer of a conversation; None if this process has none."""
        return ConversationWriter(self.store, conversation)

    def confirmed(self, conversation: str) -> ConversationWriter | None:
        """Return the writer of a conversation unless another process has taken it. Blocks briefly.

        None if it is being given up at this moment.
        """
        return self.held(conversation)

    def own(self, conversation: str) -> ConversationWriter | None:
        """Return the writer of a conversation; take it if this process has none. Blocks.

        Returns:
            None if there is no such conversation.

        Raises:
            StoreError: The store cannot be written.
        """
        return self.held(conversation)

    def adopt(self, conversation: str) -> ConversationWriter | None:
        """Return the writer of a conversation unless another living process owns it. Blocks."""
        return self.held(conversation)

    def is_elsewhere(self, name: str) -> bool:
        """Return whether another living process owns a conversation, or a turn's conversation."""
        return False

    def look_after(self, noted: Noted) -> None:
        """Do what is due between turns; a failure does not prevent the rest."""
        with noted():
            self.promises.break_gone()

    def close(self) -> None:
        """Give up all conversations, before the store is closed. May be called more than once."""
