"""Writes one conversation into a store: turns, notes, snapshots, and deletions.

Any thread may call any method. Jobs are done in order by the store's one writing thread.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from sinkstream.conversations.database import NEXT_TICK, Connection, Job
from sinkstream.conversations.deletion import (
    TURN_BYTES,
    add_bytes,
    delete_nodes,
    exists,
    remove_promise,
    with_forms,
)
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.node import Form, NewNode, Node
from sinkstream.conversations.snapshot_files import (
    doom,
    is_added,
    new_file_name,
    note_new,
    try_keep,
)
from sinkstream.conversations.store import Store

_SNAPSHOTS_KEPT = 2  # of a conversation: its head and the one before

_Result = TypeVar("_Result")


class ConversationWriter:
    """Given out by a `Fence`.

    If another process has taken the conversation since, nothing is written, and every method fails
    with `SessionMoved`, at once or in its future.
    """

    epoch = 1
    """Grows with each process that takes the conversation from another."""
    owner = ""

    def __init__(self, store: Store, conversation: str) -> None:
        self.store = store
        self.conversation = conversation

    def check(self, connection: Connection) -> None:
        """Refuse to write, in a transaction, if another process has taken the conversation.

        In a store that one process uses, no other can.

        Raises:
            SessionMoved: It has been taken.
        """

    def queued(self, done: Future[_Result]) -> Future[_Result]:
        """Watch a write that has been queued."""
        return done

    def _submit(self, job: Job[_Result]) -> Future[_Result]:
        return self.queued(self.store.submit(self._checked(job)))

    def _checked(self, job: Job[_Result]) -> Job[_Result]:
        def checked(connection: Connection) -> _Result:
            self.check(connection)
            return job(connection)

        return checked

    # ---- turns -----------------------------------------------------------------------------------

    def begin(self, new: NewNode) -> Future[None]:
        """Queue the beginning of a turn, which is found only once it is finished."""
        now = time.time()

        def job(connection: Connection) -> None:
            if new.parent is None:
                connection.execute(
                    "INSERT INTO owners VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (self.conversation, self.owner, self.epoch),
                )
            self.check(connection)
            if new.parent is not None and not exists(connection, new.parent):
                raise StoreError(
                    f"store: the turn {new.parent} was deleted, so {new.id} is not kept."
                )
            texts = (
                None if new.session_key is None else new.session_key.encode(),
                new.read_ids.tobytes(), new.messages, new.given.encode(), new.record,
            )  # fmt: skip
            key, read_ids, messages, given, record = texts
            inserted = connection.execute(
                "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, NULL, ?, NULL, NULL, ?, ?, ?, ?, ?, ?, "
                f"'', ?, 0, {NEXT_TICK}) ON CONFLICT DO NOTHING",
                (
                    new.id, new.parent, new.conversation, new.tenant, key, new.tokens, read_ids,
                    messages, new.before, given, now, record, int(new.is_after_settled),
                ),
            ).rowcount  # fmt: skip
            connection.execute(
                f"INSERT INTO conversations VALUES (?, ?, ?, ?, {NEXT_TICK}, {connection.age}, 0, "
                "?, ?) ON CONFLICT (id) DO UPDATE SET used = excluded.used, tick = excluded.tick, "
                "aged = excluded.aged, is_single = conversations.is_single * excluded.is_single",
                (
                    new.conversation,
                    new.tenant,
                    now,
                    new.title.encode(),
                    int(new.is_unnamed),
                    new.sinks,
                ),
            )
            if inserted == 1:
                count = TURN_BYTES + sum(map(_size, texts))
                add_bytes(connection, new.conversation, count)

        return self.queued(self.store.submit(job))

    def add_forms(self, forms: Sequence[Form]) -> Future[bool]:
        """Queue settled forms of turns of the conversation.

        Returns:
            Whether they are stored. If there is a form of one of the turns, or a turn is gone, none
            is.
        """

        def job(connection: Connection) -> bool:
            for form in forms:
                is_there = exists(connection, form.node.id)
                if is_there or not exists(connection, form.turn_id):
                    return False
            for form in forms:
                node = form.node
                ids = form.ids.tobytes()
                connection.execute(
                    "INSERT INTO forms VALUES (?, ?, ?, ?)",
                    (node.id, node.parent, node.tokens, ids),
                )
                add_bytes(connection, self.conversation, len(ids))
            return True

        return self._submit(job)

    def try_add_part(self, node_id: str, number: int, ids: array[int], text: str) -> bool:
        """Queue a part of a running reply if there is room; return whether there was."""
        row = (node_id, number, ids.tobytes(), text.encode())
        job = self._checked(lambda connection: self._insert_part(connection, row))
        done = self.store.try_submit(job)
        if done is not None:
            self.queued(done)
        return done is not None

    def finish(
        self, node: Node, number: int, ids: array[int], text: str, note: str = ""
    ) -> Future[None]:
        """Queue the last part of a reply and its turn's end, with a note on it.

        The future is done once they are committed.
        """
        row = (node.id, number, ids.tobytes(), text.encode())

        def job(connection: Connection) -> None:
            if ids or text:
                self._insert_part(connection, row)
            changed = connection.execute(
                "UPDATE nodes SET hash = ?, tokens = ?, last_id = ?, finish_reason = ?, note = ?, "
                "is_settled = ? WHERE id = ? AND hash IS NULL AND tokens = ? - "
                "(SELECT COALESCE(SUM(LENGTH(ids)), 0) / 4 FROM parts WHERE node = ?)",
                (
                    node.hash, node.tokens, node.last_id, node.finish_reason, note,
                    int(node.is_settled), node.id, node.tokens, node.id,
                ),
            ).rowcount  # fmt: skip
            if changed != 1 and not _is_finished(connection, node):
                # An earlier write has failed, or the turn was deleted.
                raise StoreError(
                    f"store: a part of the turn {node.id} was not written, so the turn cannot be "
                    "kept. See the server's log."
                )
            if changed == 1:
                add_bytes(connection, node.conversation, _size(note))
                remove_promise(connection, node.id)
            connection.execute(
                f"UPDATE conversations SET used = ?, tick = {NEXT_TICK}, aged = {connection.age} "
                "WHERE id = ?",
                (time.time(), node.conversation),
            )

        return self._submit(job)

    def forget(self, node_id: str) -> Future[None]:
        """Queue the deletion of a turn that left nothing."""
        return self._submit(
            lambda connection: delete_nodes(connection, self.conversation, [node_id])
        )

    def note(self, node_id: str, note: str) -> Future[None]:
        """Queue a note on a turn."""

        def job(connection: Connection) -> None:
            size = connection.size.format("note")
            row = connection.execute(f"SELECT {size} FROM nodes WHERE id = ?", [node_id]).fetchone()
            if row is not None:
                connection.execute("UPDATE nodes SET note = ? WHERE id = ?", [note, node_id])
                add_bytes(connection, self.conversation, _size(note) - row[0])

        return self._submit(job)

    def rename(self, title: str) -> Future[None]:
        """Queue another title of the conversation."""

        def job(connection: Connection) -> None:
            query = "UPDATE conversations SET title = ? WHERE id = ?"
            connection.execute(query, (title.encode(), self.conversation))

        return self._submit(job)

    def _insert_part(self, connection: Connection, row: tuple[str, int, bytes, bytes]) -> None:
        inserted = connection.execute(
            "INSERT INTO parts SELECT ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM nodes WHERE id = ?) "
            "ON CONFLICT DO NOTHING",
            (*row, row[0]),
        ).rowcount
        if inserted == 1:
            add_bytes(connection, self.conversation, len(row[2]) + len(row[3]))

    # ---- deletion --------------------------------------------------------------------------------

    def delete_tree(self, node_id: str) -> Future[None]:
        """Delete a turn and all that follow it."""
        below = (
            "WITH RECURSIVE below(id) AS (SELECT id FROM nodes WHERE id = ? UNION ALL "
            "SELECT nodes.id FROM nodes JOIN below ON nodes.parent = below.id) SELECT id FROM below"
        )
        return self._submit(lambda connection: self._delete(connection, below, node_id))

    def delete_all(self, tick: int | None = None) -> Future[bool]:
        """Delete all turns of the conversation.

        Args:
            tick: That of its last use; if it has been used since, it stays. None deletes it in any
                case.

        Returns:
            Whether it was deleted.
        """

        def job(connection: Connection) -> bool:
            found = connection.execute(
                "SELECT tick FROM conversations WHERE id = ?", [self.conversation]
            ).fetchone()
            if tick is not None and found is not None and found[0] > tick:
                return False
            query = "SELECT id FROM nodes WHERE conversation = ?"
            self._delete(connection, query, self.conversation)
            return True

        return self._submit(job)

    def _delete(self, connection: Connection, query: str, name: str) -> None:
        """Delete the turns that a query finds, and their files."""
        ids = [row[0] for row in connection.execute(query, [name]).fetchall()]
        rows = connection.execute(
            "SELECT node, file FROM snapshots WHERE conversation = ?", [self.conversation]
        ).fetchall()
        delete_nodes(connection, self.conversation, ids)
        gone = set(with_forms(ids))
        self.store.free(*(file for node_id, file in rows if node_id in gone), cleans=True)

    # ---- snapshots -------------------------------------------------------------------------------

    def new_file(self, node_id: str) -> str:
        """Return a name for the file of a snapshot, which is about to be written.

        Raises:
            SessionMoved: The conversation was taken.
            StoreError: The store cannot be written.
        """
        file = new_file_name(node_id)
        self._submit(lambda connection: note_new(connection, node_id, file)).result()
        return file

    def add_snapshot(self, node: Node, file: str, size: int) -> None:
        """Record a snapshot whose file is complete; delete older ones of its conversation.

        If the turn was deleted meanwhile, or the file took longer than an hour, it is deleted.

        Args:
            node: The turn.
            file: The name of the file, from `new_file`.
            size: The file's size in bytes.

        Raises:
            SessionMoved: The conversation was taken.
            StoreError: It cannot be written.

        After an error, the file is deleted.
        """
        store = self.store

        def job(connection: Connection) -> None:
            is_wanted = exists(connection, node.id) and (
                try_keep(connection, file) or is_added(connection, node.id, file)
            )
            if not is_wanted:  # deleted meanwhile, or too late
                doom(connection, [file])
                store.free(file)
                return
            store.remove_snapshot(connection, node.id, but=file)
            tick, latest = connection.execute(
                f"SELECT {NEXT_TICK}, COALESCE(MAX(tick), 0) FROM snapshots WHERE conversation = ?",
                [node.conversation],
            ).fetchone()
            connection.execute(
                "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (node.id, node.conversation, size, max(tick, latest + 1), file),
            )
            rows = connection.execute(
                "SELECT node FROM snapshots WHERE conversation = ? ORDER BY tick DESC",
                [node.conversation],
            ).fetchall()
            for (old,) in rows[_SNAPSHOTS_KEPT:]:
                store.remove_snapshot(connection, old)

        try:
            self._submit(job).result()
        except Exception:
            store.delete_file(file)
            raise

    def drop_snapshot(self, node_id: str) -> None:
        """Delete a snapshot."""
        store = self.store
        self._submit(lambda connection: store.remove_snapshot(connection, node_id)).result()


def _size(value: str | bytes | None) -> int:
    """Return the bytes of a value in the database."""
    return len(value.encode() if isinstance(value, str) else value or b"")


def _is_finished(connection: Connection, node: Node) -> bool:
    """Return whether an earlier commit of a turn's end, whose outcome was unknown, succeeded."""
    found = connection.execute("SELECT hash, tokens FROM nodes WHERE id = ?", [node.id])
    row = found.fetchone()
    return row is not None and tuple(row) == (node.hash, node.tokens)
