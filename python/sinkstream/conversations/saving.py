"""When sessions get snapshots, and how these are written and counted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from sinkstream.conversations.claim import Claim
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.snapshots import save_snapshot
from sinkstream.conversations.store import Store
from sinkstream.errors import SinkstreamError

logger = logging.getLogger("sinkstream")


class Saving:
    """Of sessions that the caller has claimed or keeps. Any thread may call it."""

    def __init__(
        self,
        store: Store,
        claim_of: Callable[[str], Claim | None],
        *,
        replay_tokens: int,
        snapshot_tokens: int,
    ) -> None:
        """Write snapshots into a store.

        Args:
            store: The store.
            claim_of: Returns this replica's claim to a conversation; without a claim, none of its
                snapshots is written or deleted.
            replay_tokens: A parked session that can be replayed with at most this many tokens gets
                no snapshot.
            snapshot_tokens: A session that has grown by this many tokens gets one at once.
        """
        self._store = store
        self._claim_of = claim_of
        self._replay_tokens = replay_tokens
        self._snapshot_tokens = snapshot_tokens
        self.residents: Callable[[], Sequence[Resident]] = list
        """Returns all sessions, which note what is saved."""

    def unsaved(self, resident: Resident) -> int:
        """Return how many tokens to replay if a session were lost; 0 if it is not kept."""
        node = resident.node
        if node is None or not resident.is_stored or resident.is_passing or resident.cancelled_ids:
            return 0
        return node.tokens - resident.saved_tokens

    def needs_saving(self, resident: Resident) -> bool:
        """Return whether parking a session writes its snapshot."""
        return self.unsaved(resident) > self._replay_tokens

    def is_due(self, resident: Resident) -> bool:
        """Return whether a session has grown so much that it is saved before its next turn."""
        return 0 < self.unsaved(resident) >= self._snapshot_tokens

    def save(self, resident: Resident) -> None:
        """Write a claimed or kept session's snapshot, if this replica owns the conversation.

        Raises:
            OSError: The file cannot be written.
            StoreError: It cannot be recorded.
            SessionMoved: Another replica has taken the conversation.
        """
        node = resident.node
        assert node is not None  # `unsaved` is above 0
        claim = self._claim_of(node.conversation)
        if claim is None:
            return
        file = self._store.new_file(claim, node.id)
        with self._store.files.writing(file) as path:
            save_snapshot(resident.session, node, path)
            size = os.stat(path).st_size  # noqa: PTH116
        self._store.add_snapshot(claim, node, file, size)
        self._count_saved(node.conversation)  # it may have displaced that of a branch

    def drop_snapshot(self, node_id: str) -> None:
        """Delete a turn's snapshot, if this replica owns the conversation.

        A session that relied on it will be saved again.
        """
        node = self._store.state(node_id)
        claim = None if node is None else self._claim_of(node.conversation)
        if node is None or claim is None:
            return
        self._store.drop_snapshot(claim, node_id)
        self._count_saved(node.conversation)

    def _count_saved(self, conversation: str) -> None:
        for one in self.residents():
            if one.node is not None and one.node.conversation == conversation:
                one.saved_tokens = self._store.saved_tokens(one.node.id)

    def secure(self, resident: Resident) -> None:
        """Save a session if restoring it without a snapshot would take long."""
        try:
            if self.needs_saving(resident):
                self.save(resident)
        except (OSError, SinkstreamError) as error:  # its ids are stored: it will be replayed
            logger.warning("store: a parked session will be replayed: %s", error)
