"""Snapshots of sessions: when they are written, what they name, and who writes them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import SessionMoved
from sinkstream.conversations.node import Node
from sinkstream.conversations.residency import Residency, Resident
from sinkstream.conversations.store import Store
from sinkstream.errors import CheckpointError, SinkstreamError
from sinkstream.host import Host
from sinkstream.sessions import saved
from sinkstream.sessions.thoughts import Thoughts
from sinkstream.sessions.token_session import ConversationState, TokenSession
from sinkstream.streams.worker import wanted

logger = logging.getLogger("sinkstream")


def save_snapshot(session: TokenSession, node: Node, path: str) -> None:
    """Write the session, whose last turn is `node`, to a file that only its owner can read.

    A power cut may leave it damaged. The checksum reveals that, and the turn is then replayed.

    Raises:
        OSError: The file cannot be written there.
    """
    session.save(path, wanted, _labels(node), flush=False)


def load_snapshot(
    host: Host, node: Node, path: str, cache_salt: str, thoughts: Thoughts
) -> TokenSession:
    """Open the session in a file that `save_snapshot` wrote for the same turn.

    Raises:
        CheckpointError: It is missing, damaged, or for a different turn, model or cache type.
        CapacityError: There is no memory for another session.
    """
    native, record = saved.load(path, host, cache_salt=cache_salt)
    found = {name: record.fields.get(name) for name in _labels(node)}
    if found != _labels(node):
        native.close()
        raise CheckpointError(
            f"load_session: {path} must be the snapshot of turn {node.id}, but belongs to another "
            "turn."
        )
    system_tokens = record.state.system_tokens
    return TokenSession(
        native, host, state_at(node), system_tokens=system_tokens, fields=thoughts.fields
    )


def state_at(node: Node) -> ConversationState:
    """Return where the conversation of a session at the end of a turn is."""
    return ConversationState("assistant", reply_is_open=not node.is_form)


def _labels(node: Node) -> dict[str, str | int]:
    return {"node": node.id, "tenant": node.tenant, "hash": node.hash.hex()}


class Snapshots:
    """Of sessions that the caller has acquired or keeps. Any thread may call it."""

    def __init__(
        self,
        store: Store,
        writer_of: Callable[[str], ConversationWriter | None],
        *,
        replay_tokens: int,
        snapshot_tokens: int,
    ) -> None:
        """Write snapshots into a store.

        Args:
            store: The store.
            writer_of: Returns what writes a conversation; if None, none of its snapshots is written
                or deleted.
            replay_tokens: A parked session that can be replayed with at most this many tokens gets
                no snapshot.
            snapshot_tokens: A session that has grown by this many tokens gets one at once.
        """
        self._store = store
        self._writer_of = writer_of
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
        """Write an acquired or kept session's snapshot, if this process may write the conversation.

        Raises:
            OSError: The file cannot be written.
            StoreError: It cannot be recorded.
            SessionMoved: Another process has taken the conversation.
        """
        node = resident.node
        assert node is not None  # `unsaved` is above 0
        writer = self._writer_of(node.conversation)
        if writer is None:
            return
        file = writer.new_file(node.id)
        with self._store.files.writing(file) as path:
            save_snapshot(resident.session, node, path)
            size = os.stat(path).st_size  # noqa: PTH116
        writer.add_snapshot(node, file, size)
        self._count_saved(node.conversation)  # it may have displaced that of a branch

    def drop_snapshot(self, node_id: str) -> None:
        """Delete a turn's snapshot, if this process may write the conversation.

        A session that relied on it will be saved again.
        """
        node = self._store.state(node_id)
        writer = None if node is None else self._writer_of(node.conversation)
        if node is None or writer is None:
            return
        writer.drop_snapshot(node_id)
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


class SnapshotThread:
    """A thread that saves idle sessions.

    A session that has grown by a window is saved before its next turn, however soon that comes.
    While all seats are taken, the next ones to be freed are saved, so that freeing one is quick.
    """

    def __init__(self, snapshots: Snapshots, residency: Residency, count: int) -> None:
        """Keep the next `count` sessions to give up their seats saved."""
        self._snapshots = snapshots
        self._residency = residency
        self._count = count
        self._is_ending = threading.Event()
        residency.set_saver(True)
        self._thread = threading.Thread(target=self._run, name="sinkstream-saver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the snapshot that it is writing."""
        self._is_ending.set()
        self._residency.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            self._residency.set_saver(False)

    def _loop(self) -> None:
        snapshots, residency = self._snapshots, self._residency
        while (
            resident := residency.next_to_save(snapshots.needs_saving, self._count, self._is_ending)
        ) is not None:
            # Tried once, whatever comes of it; maintenance and parking try again.
            resident.tried = resident.node
            try:
                snapshots.save(resident)
            except SessionMoved:
                pass  # the process that has taken the conversation saves it
            except (OSError, SinkstreamError) as error:
                logger.warning("store: a snapshot could not be written: %s", error)
            finally:
                residency.release(resident)
