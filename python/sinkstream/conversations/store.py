"""The tree of turns in a database, and the snapshots of sessions in files.

Any thread may call any method. Writes go through `Writer`, in order, and each carries a claim: if
another replica has taken the conversation, nothing is written, and the write fails with
`SessionMoved`. Knows nothing about models or sessions in memory.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, TypeVar

from sinkstream.conversations.claim import Claim, SessionMoved
from sinkstream.conversations.connection import Connection, Job
from sinkstream.conversations.deletion import (
    close_unfinished,
    delete_nodes,
    delete_snapshots,
    exists,
    in_marks,
    with_forms,
)
from sinkstream.conversations.loose_files import (
    AT_ONCE,
    DOOMED_S,
    WRITING_S,
    FileDeletions,
    doom,
    forget,
    is_added,
    note_new,
    try_keep,
)
from sinkstream.conversations.node import Form, NewNode, Node
from sinkstream.conversations.snapshot_files import (
    SnapshotFiles,
    SnapshotFolder,
    new_file_name,
)
from sinkstream.conversations.store_error import StoreError
from sinkstream.conversations.store_reads import StoreReads
from sinkstream.conversations.writer import Writer

_SNAPSHOTS_KEPT = 2  # of a conversation: its head and the one before
_LATER_S = 1e-6  # the order of snapshots is that of their writes, even if a clock goes back

Point = Literal["taken", "loaded", "begin", "part", "commit", "snapshot", "note", "delete"]
"""Where a replica may stall: after it has taken a conversation or loaded its state; before a turn's
beginning, a part of a reply, a turn's end, a snapshot, a note or a deletion is written."""

_Result = TypeVar("_Result")


def _nothing(_: object) -> None:
    pass


class Store(StoreReads):
    """An open store."""

    secret: bytes
    replica: str
    """The name of this process among those that use the store; "" if it is the only one."""
    files: SnapshotFiles
    _writer: Writer
    _deletions: FileDeletions

    def __init__(self) -> None:
        self.on_lost: Callable[[Claim], None] = _nothing
        """Called by the writing thread when another replica has taken a conversation."""
        self.reach: Callable[[Point], None] = _nothing
        """Called at each point at which tests stall or end a replica."""
        self._not_begun: set[str] = set()
        """Conversations whose first turn is running, but could not be written."""

    def _use(self, writer: Writer) -> None:
        """Write through `writer`, and delete the files that it frees."""
        self._writer = writer
        self._deletions = FileDeletions(self.files)
        writer.on_freed = self._deletions.delete

    @abstractmethod
    def close(self) -> None:
        """Write what is queued, and close the database. May be called more than once."""

    def write_queued(self) -> None:
        """Wait until what has been queued is written. Blocks briefly."""
        self._writer.submit(_nothing).result()

    # ---- owners ----------------------------------------------------------------------------------

    def take(self, session: str) -> Claim | None:
        """Take a conversation from its owner, and close its running turns.

        Returns:
            The claim; None if there is no such conversation, or none of its turns is left.
        """

        def job(connection: Connection) -> Claim | None:
            row = connection.execute(
                f"SELECT epoch FROM owners WHERE session = ?{connection.row_lock}", [session]
            ).fetchone()
            if row is None:
                return None
            claim = Claim(session, row[0] + 1)
            connection.execute(
                "UPDATE owners SET replica = ?, epoch = ? WHERE session = ?",
                (self.replica, claim.epoch, session),
            )
            close_unfinished(connection, session)
            found = connection.execute("SELECT 1 FROM owners WHERE session = ?", [session])
            return claim if found.fetchone() is not None else None

        claim = self._writer.submit(job).result()
        self.reach("taken")
        return claim

    def give_up(self, claim: Claim) -> None:
        """Give up a conversation, so that others do not have to ask for it."""
        self.give_up_each([claim])

    def announce(self, address: str) -> None:
        """Announce that this replica is alive, and at which address."""

        def job(connection: Connection) -> None:
            connection.execute(
                f"INSERT INTO replicas VALUES (?, ?, {self.clock}) ON CONFLICT (name) "
                "DO UPDATE SET address = excluded.address, seen = excluded.seen",
                (self.replica, address),
            )

        self._writer.submit(job).result()

    def give_up_each(self, claims: Sequence[Claim]) -> None:
        """Give up some conversations, unless they have been taken since."""
        ordered = sorted(claims, key=lambda claim: claim.session)  # as others lock them

        def job(connection: Connection) -> None:
            for claim in ordered:
                connection.execute(
                    "UPDATE owners SET replica = '' WHERE session = ? AND epoch = ?",
                    (claim.session, claim.epoch),
                )

        self._writer.submit(job).result()

    def give_up_all(self) -> None:
        """Give up all conversations."""

        def job(connection: Connection) -> None:
            rows = connection.execute(
                f"SELECT session FROM owners WHERE replica = ?{connection.row_lock}",
                [self.replica],
            ).fetchall()
            given_up = sorted(session for (session,) in rows)
            for marks, some in in_marks(given_up):
                connection.execute(
                    f"UPDATE owners SET replica = '' WHERE session IN ({marks})", some
                )

        self._writer.submit(job).result()

    def leave(self) -> None:
        """Give up all conversations of this replica, which is shutting down."""
        self.give_up_all()

        def job(connection: Connection) -> None:
            connection.execute("DELETE FROM replicas WHERE name = ?", [self.replica])

        self._writer.submit(job).result()

    def _check(self, connection: Connection, claim: Claim) -> None:
        """Refuse to write with a claim that is no longer the latest.

        The conversation cannot be taken before the end of the transaction.

        Raises:
            SessionMoved: It has been taken since, or was deleted.
            StoreError: Its beginning was not written.
        """
        if not self.replica:  # the lock on the folder keeps others out
            return
        row = connection.execute(
            f"SELECT epoch FROM owners WHERE session = ?{connection.row_lock}", [claim.session]
        ).fetchone()
        if row is None and claim.session in self._not_begun:
            raise StoreError(
                f"store: the beginning of the conversation {claim.session} was not written, so "
                "none of it can be kept. See the server's log."
            )
        if row is None or row[0] != claim.epoch:
            raise SessionMoved(claim.session)

    def _submit(self, claim: Claim, job: Job[_Result]) -> Future[_Result]:
        return self._watched(claim, self._writer.submit(job))

    def _watched(self, claim: Claim, done: Future[_Result]) -> Future[_Result]:
        def report(ended: Future[_Result]) -> None:
            if isinstance(ended.exception(), SessionMoved):
                self.on_lost(claim)

        done.add_done_callback(report)
        return done

    # ---- turns -----------------------------------------------------------------------------------

    def begin(self, claim: Claim, new: NewNode) -> None:
        """Queue the beginning of a turn, which is found only once it is finished.

        The first turn of a conversation also sets the conversation's owner.
        """
        now = time.time()
        self.reach("begin")

        def job(connection: Connection) -> None:
            if new.parent is None:
                connection.execute(
                    "INSERT INTO owners VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (claim.session, self.replica, claim.epoch),
                )
            self._check(connection, claim)
            if new.parent is not None and not exists(connection, new.parent):
                raise StoreError(
                    f"store: the turn {new.parent} was deleted, so {new.id} is not kept."
                )
            connection.execute(
                "INSERT INTO conversations VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET used = excluded.used",
                (new.conversation, new.tenant, now, new.title.encode()),
            )
            connection.execute(
                "INSERT INTO nodes "
                "VALUES (?, ?, ?, ?, ?, NULL, ?, NULL, NULL, ?, ?, ?, ?, ?, ?, '', ?, 0) "
                "ON CONFLICT DO NOTHING",
                (
                    new.id, new.parent, new.conversation, new.tenant,
                    None if new.session_key is None else new.session_key.encode(), new.tokens,
                    new.read_ids.tobytes(), new.messages, new.before, new.given.encode(), now,
                    new.record, int(new.is_after_settled),
                ),
            )  # fmt: skip

        def note_failure(done: Future[None]) -> None:
            if new.parent is None and done.exception() is not None:
                self._not_begun.add(claim.session)

        self._submit(claim, job).add_done_callback(note_failure)

    def add_forms(self, claim: Claim, forms: Sequence[Form]) -> Future[bool]:
        """Queue settled forms of turns of a conversation.

        Returns:
            Whether they are stored. If there is a form of one of the turns, or a turn is gone, none
            is.
        """

        def job(connection: Connection) -> bool:
            self._check(connection, claim)
            for form in forms:
                is_there = exists(connection, form.node.id)
                if is_there or not exists(connection, form.turn_id):
                    return False
            for form in forms:
                node = form.node
                connection.execute(
                    "INSERT INTO forms VALUES (?, ?, ?, ?)",
                    (node.id, node.parent, node.tokens, form.ids.tobytes()),
                )
            return True

        return self._submit(claim, job)

    def try_add_part(
        self, claim: Claim, node_id: str, number: int, ids: array[int], text: str
    ) -> bool:
        """Queue a part of a running reply if there is room; return whether there was."""
        row = (node_id, number, ids.tobytes(), text.encode())
        self.reach("part")

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            _insert_part(connection, row)

        done = self._writer.try_submit(job)
        if done is not None:
            self._watched(claim, done)
        return done is not None

    def finish(
        self, claim: Claim, node: Node, number: int, ids: array[int], text: str, note: str = ""
    ) -> Future[None]:
        """Queue the last part of a reply and its turn's end, with a note on it.

        The future is done once they are committed.
        """
        row = (node.id, number, ids.tobytes(), text.encode())
        self.reach("commit")

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            if ids or text:
                _insert_part(connection, row)
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
            connection.execute(
                "UPDATE conversations SET used = ? WHERE id = ?", (time.time(), node.conversation)
            )

        return self._ending(claim, job)

    def _ending(self, claim: Claim, job: Job[None]) -> Future[None]:
        """Queue the last write of a turn."""
        done = self._submit(claim, job)
        done.add_done_callback(lambda _: self._not_begun.discard(claim.session))
        return done

    def forget(self, claim: Claim, node_id: str) -> Future[None]:
        """Queue the deletion of a turn that left nothing."""

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            delete_nodes(connection, claim.session, [node_id])

        return self._ending(claim, job)

    def note(self, claim: Claim, node_id: str, note: str) -> Future[None]:
        """Queue a note on a turn."""
        self.reach("note")

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            connection.execute("UPDATE nodes SET note = ? WHERE id = ?", [note, node_id])

        return self._submit(claim, job)

    # ---- deletion --------------------------------------------------------------------------------

    def delete_tree(self, claim: Claim, node_id: str) -> Future[None]:
        """Delete a turn and all that follow it."""
        below = (
            "WITH RECURSIVE below(id) AS (SELECT id FROM nodes WHERE id = ? UNION ALL "
            "SELECT nodes.id FROM nodes JOIN below ON nodes.parent = below.id) SELECT id FROM below"
        )

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            self._delete(connection, claim.session, below, node_id)

        return self._deletion(claim, job)

    def delete_conversation(self, claim: Claim, used: float | None = None) -> Future[bool]:
        """Delete all turns of a conversation.

        Args:
            claim: The claim to the conversation.
            used: When it was last used; if it has been used since, it stays. None deletes it in any
                case.

        Returns:
            Whether it was deleted.
        """

        def job(connection: Connection) -> bool:
            self._check(connection, claim)
            found = connection.execute(
                "SELECT used FROM conversations WHERE id = ?", [claim.session]
            ).fetchone()
            if used is not None and found is not None and found[0] > used:
                return False
            query = "SELECT id FROM nodes WHERE conversation = ?"
            self._delete(connection, claim.session, query, claim.session)
            return True

        return self._deletion(claim, job)

    def _deletion(self, claim: Claim, job: Job[_Result]) -> Future[_Result]:
        self.reach("delete")
        return self._submit(claim, job)

    def _delete(self, connection: Connection, session: str, query: str, name: str) -> None:
        """Delete the turns of a conversation that a query finds, and their files."""
        ids = [row[0] for row in connection.execute(query, [name]).fetchall()]
        rows = connection.execute(
            "SELECT node, file FROM snapshots WHERE conversation = ?", [session]
        ).fetchall()
        delete_nodes(connection, session, ids)
        self._writer.must_clean = True
        gone = set(with_forms(ids))
        self._writer.freed.extend(file for node_id, file in rows if node_id in gone)

    # ---- snapshots -------------------------------------------------------------------------------

    def new_file(self, claim: Claim, node_id: str) -> str:
        """Return a name for the file of a snapshot, which is about to be written.

        Raises:
            SessionMoved: The conversation was taken.
            StoreError: The store cannot be written.
        """
        file = new_file_name(node_id)

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            note_new(connection, node_id, file)

        self._submit(claim, job).result()
        return file

    def add_snapshot(self, claim: Claim, node: Node, file: str, size: int) -> None:
        """Record a snapshot whose file is complete; delete older ones of its conversation.

        If the turn was deleted meanwhile, or the file took longer than an hour, it is deleted.

        Args:
            claim: The claim to the conversation.
            node: The turn.
            file: The name of the file, from `new_file`.
            size: The file's size in bytes.

        Raises:
            SessionMoved: The conversation was taken.
            StoreError: It cannot be written.

        After an error, the file is deleted.
        """
        self.reach("snapshot")

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            is_wanted = exists(connection, node.id) and (
                try_keep(connection, file) or is_added(connection, node.id, file)
            )
            if not is_wanted:  # deleted meanwhile, or too late
                doom(connection, [file])
                self._writer.freed.append(file)
                return
            self._remove(connection, node.id, but=file)
            now, latest = connection.execute(
                f"SELECT {self.clock}, MAX(created) FROM snapshots WHERE conversation = ?",
                [node.conversation],
            ).fetchone()
            created = now if latest is None else max(now, latest + _LATER_S)
            connection.execute(
                "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (node.id, node.conversation, size, created, file),
            )
            rows = connection.execute(
                "SELECT node FROM snapshots WHERE conversation = ? ORDER BY created DESC",
                [node.conversation],
            ).fetchall()
            for (old,) in rows[_SNAPSHOTS_KEPT:]:
                self._remove(connection, old)

        try:
            self._submit(claim, job).result()
        except Exception:
            self._deletions.delete(file)
            raise

    def delete_loose_files(self) -> None:
        """Delete files of deleted snapshots, and those whose writer has died, once they are old.

        Raises:
            StoreError: The store cannot be read or written.
        """
        gone = self._deletions.take_gone()
        if gone:
            self._writer.submit(lambda connection: forget(connection, gone)).result()
        rows = self._rows(
            f"SELECT file, is_doomed, {self.clock} - since FROM loose_files "
            f"WHERE since <= {self.clock} - ? ORDER BY since LIMIT ?",
            [DOOMED_S, AT_ONCE],
        )
        late = [file for file, is_doomed, age in rows if not is_doomed and age >= WRITING_S]
        if late:  # their writers can no longer add them, and the next sweep deletes them
            self._writer.submit(lambda connection: doom(connection, late)).result()
        for file, is_doomed, _ in rows:
            if is_doomed:
                self._deletions.delete(file)

    def delete_orphans(self, older_than_s: float) -> None:
        """Delete files without a row that have not been written for a while.

        Raises:
            StoreError: The folder cannot be read.
        """
        if isinstance(self.files, SnapshotFolder):
            names = [file for (file,) in self._rows("SELECT file FROM snapshots")]
            self.files.delete_others(names, older_than_s)

    def drop_snapshot(self, claim: Claim, node_id: str) -> None:
        """Delete a snapshot."""

        def job(connection: Connection) -> None:
            self._check(connection, claim)
            self._remove(connection, node_id)

        self._submit(claim, job).result()

    def _remove(self, connection: Connection, node_id: str, but: str = "") -> None:
        found = connection.execute("SELECT file FROM snapshots WHERE node = ?", [node_id])
        row = found.fetchone()
        if row is not None and row[0] != but:
            delete_snapshots(connection, [node_id])
            self._writer.freed.append(row[0])


def _insert_part(connection: Connection, row: tuple[str, int, bytes, bytes]) -> None:
    connection.execute(
        "INSERT INTO parts SELECT ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM nodes WHERE id = ?) "
        "ON CONFLICT DO NOTHING",
        (*row, row[0]),
    )


def _is_finished(connection: Connection, node: Node) -> bool:
    """Return whether an earlier commit of a turn's end, whose outcome was unknown, succeeded."""
    found = connection.execute("SELECT hash, tokens FROM nodes WHERE id = ?", [node.id])
    row = found.fetchone()
    return row is not None and tuple(row) == (node.hash, node.tokens)
