"""The tree of turns in a database, and the snapshots of sessions in files.

Any thread may call any method. `ConversationWriter` writes. Reading sees what was committed: a
completed turn never changes. Knows nothing about models or sessions in memory.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from sinkstream.conversations.database import Connection, Job, Writer, in_marks
from sinkstream.conversations.deletion import delete_snapshots
from sinkstream.conversations.errors import StoreError, lost
from sinkstream.conversations.node import (
    SETTLED,
    Form,
    Node,
    form_node,
    is_settled_id,
    settled_id,
    turn_of,
)
from sinkstream.conversations.snapshot_files import (
    AT_ONCE,
    DOOMED_S,
    WRITING_S,
    FileDeletions,
    SnapshotFiles,
    doom,
    forget,
)
from sinkstream.conversations.transcript import ListedConversation, StoredTurn, TurnOutline
from sinkstream.conversations.turns import TurnText

logger = logging.getLogger("sinkstream")

_NODE = (
    "nodes.id, parent, conversation, nodes.tenant, hash, tokens, last_id, "
    "session_key, finish_reason, is_after_settled, is_settled"
)
_BASE = f"CASE WHEN {{0}}is_after_settled = 1 THEN {{0}}parent || '{SETTLED}' ELSE {{0}}parent END"
# With `? IN (conversation, nodes.id)`, both databases would read the whole table.
_NAMED = "(conversation = ? OR nodes.id = ?)"
_HASHES_FIRST = 4  # they find a history that is sent again as it was


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk."""

    transcripts: int
    snapshots: int


_Result = TypeVar("_Result")


class Store(ABC):
    """An open store. Any thread may call any method."""

    name: str
    """Where it is, for messages."""
    secret: bytes
    files: SnapshotFiles
    clock: str
    """The database's time in seconds since 1970, as an expression."""
    age: str
    """As for `Connection`."""
    counts_pages: bool
    """Whether `usage` counts the pages of a file, of which turns are a part."""
    lost: str | None = None
    """Why nothing is read or written: what became of the database, if it is no longer there."""
    _writer: Writer
    _deletions: FileDeletions

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query.

        Raises:
            StoreError: The database cannot be read, or is no longer there.
        """
        if self.lost is not None:
            raise StoreError(self.lost)
        return self._rows(query, values)

    @abstractmethod
    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]: ...

    @abstractmethod
    def _is_there(self) -> bool:
        """Return whether the database is the one that was opened. Blocks briefly."""

    def look(self) -> bool:
        """Look whether the database is still the one that was opened, and return it.

        Its file can be deleted or replaced: what is written then is lost with the process.

        Raises:
            StoreError: It cannot be reached.
        """
        if self._is_there():
            self.lost = None
        elif self.lost is None:
            self.lost = lost(self.name)
            logger.error("%s", self.lost)
        return self.lost is None

    @abstractmethod
    def _transcript_bytes(self) -> int:
        """Return the bytes that turns take."""

    @abstractmethod
    def close(self) -> None:
        """Write what is queued, and close the database. May be called more than once."""

    # ---- turns -----------------------------------------------------------------------------------

    def node(self, node_id: str) -> Node | None:
        """Return a completed turn."""
        rows = self.rows(f"SELECT {_NODE} FROM nodes WHERE id = ? AND hash IS NOT NULL", [node_id])
        return _node(rows[0]) if rows else None

    def form(self, node: Node) -> Form | None:
        """Return the settled form of a turn, if it is known."""
        name = settled_id(node.id)
        rows = self.rows("SELECT base, tokens, ids FROM forms WHERE id = ?", [name])
        if not rows:
            return None
        base, tokens, ids = rows[0]
        return Form(form_node(node, base, tokens), array("i", ids))

    def state(self, name: str) -> Node | None:
        """Return a completed turn, or the settled form of one, by its id; None for a draft."""
        if not is_settled_id(name):
            return self.node(name)
        turn = self.node(turn_of(name))
        form = None if turn is None else self.form(turn)
        return None if form is None or form.node.id != name else form.node

    def find(self, tenant: str, hashes: Sequence[bytes]) -> list[Node]:
        """Return a tenant's completed turns with the first of the given hashes that has any.

        The most recently used conversation comes first.
        """
        for marks, some in in_marks(hashes, _HASHES_FIRST):
            rows = self.rows(
                f"SELECT {_NODE} FROM nodes JOIN conversations AS c ON c.id = conversation "
                f"WHERE hash IN ({marks}) AND nodes.tenant = ? "
                "ORDER BY c.tick DESC, nodes.tick DESC, created DESC",
                [*some, tenant],
            )
            if rows:
                found = [_node(row) for row in rows]
                longest = min(found, key=lambda node: some.index(node.hash)).hash
                return [node for node in found if node.hash == longest]
        return []

    def ids_of(self, node_id: str) -> array[int]:
        """Return the ids that a turn read and generated, or those of a settled form."""
        ids: array[int] = array("i")
        if is_settled_id(node_id):
            for (read,) in self.rows("SELECT ids FROM forms WHERE id = ?", [node_id]):
                ids.frombytes(read)
            return ids
        for (read,) in self.rows("SELECT read_ids FROM nodes WHERE id = ?", [node_id]):
            ids.frombytes(read)
        for (part,) in self.rows("SELECT ids FROM parts WHERE node = ? ORDER BY number", [node_id]):
            ids.frombytes(part)
        return ids

    def text_of(self, tenant: str, node_id: str, *, may_run: bool = False) -> TurnText | None:
        """Return a completed turn of a tenant, as text; or also one that is running."""
        rows = self.rows(
            "SELECT parent, messages, given, COALESCE(finish_reason, ''), created, record, note "
            f"FROM nodes WHERE id = ? AND tenant = ?{'' if may_run else ' AND hash IS NOT NULL'}",
            [node_id, tenant],
        )
        if not rows:
            return None
        parts = self.rows("SELECT text FROM parts WHERE node = ? ORDER BY number", [node_id])
        parent, messages, given, finish_reason, created, record, note = rows[0]
        return TurnText(
            parent,
            json.loads(messages),
            given.decode(),
            b"".join(text for (text,) in parts).decode(),
            finish_reason,
            created,
            record,
            note,
        )

    # ---- conversations ---------------------------------------------------------------------------

    def conversations(self, tenant: str) -> list[tuple[str, float]]:
        """Return a tenant's conversations and when each was used, latest first."""
        return [
            (name, used)
            for name, used in self.rows(
                "SELECT id, used FROM conversations WHERE tenant = ? ORDER BY tick DESC", [tenant]
            )
        ]

    def listed(self, tenant: str, limit: int, after: str | None = None) -> list[ListedConversation]:
        """Return a tenant's conversations, latest first, at most `limit`; see `Turns`.

        Those that follow the conversation `after` are returned; none if there is no such one.
        """
        last = "(SELECT tick, id FROM conversations WHERE id = ? AND tenant = ?)"
        further = "" if after is None else f"AND (tick, id) < {last} "
        rows = self.rows(
            # Without COALESCE, SQLite might look at the first turns of all conversations.
            "SELECT id, used, title, (SELECT session_key FROM nodes WHERE conversation = "
            "conversations.id AND COALESCE(parent, '') = '' AND session_key IS NOT NULL LIMIT 1) "
            f"FROM conversations WHERE tenant = ? AND is_single = 0 {further}"
            "ORDER BY tick DESC, id DESC LIMIT ?",
            [tenant, *(() if after is None else (after, tenant)), limit],
        )
        return [
            ListedConversation(name, used, title.decode(), _text(key))
            for name, used, title, key in rows
        ]

    def has_conversation(self, tenant: str, name: str) -> bool:
        """Return whether a tenant has a conversation with an id."""
        query = "SELECT 1 FROM conversations WHERE id = ? AND tenant = ?"
        return bool(self.rows(query, [name, tenant]))

    def sinks_of(self, conversation: str) -> int | None:
        """Return S of a conversation; None for the model's."""
        rows = self.rows("SELECT sinks FROM conversations WHERE id = ?", [conversation])
        return rows[0][0] if rows else None

    def last_turn(self, tenant: str, name: str) -> Node | None:
        """Return the last completed turn of a tenant's conversation, or the turn with an id."""
        rows = self.rows(
            f"SELECT {_NODE} FROM nodes WHERE {_NAMED} AND tenant = ? AND hash IS NOT NULL "
            "ORDER BY tick DESC, created DESC LIMIT 1",
            [name, name, tenant],
        )
        return _node(rows[0]) if rows else None

    def nodes_of(self, conversation: str) -> list[Node]:
        """Return a conversation's completed turns, oldest first."""
        rows = self.rows(
            f"SELECT {_NODE} FROM nodes WHERE conversation = ? AND hash IS NOT NULL "
            "ORDER BY tick, created",
            [conversation],
        )
        return [_node(row) for row in rows]

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Return the completed turns of a tenant's conversation, oldest first, or one turn."""
        rows = self.rows(
            "SELECT nodes.id, parent, conversation, session_key, created, finish_reason, "
            "nodes.tokens, messages, given, read_ids, forms.tokens, forms.ids, "
            "(SELECT sinks FROM conversations WHERE id = conversation) FROM nodes "
            f"LEFT JOIN forms ON forms.id = nodes.id || '{SETTLED}' "
            f"WHERE {_NAMED} AND tenant = ? AND hash IS NOT NULL ORDER BY tick, created",
            [name, name, tenant],
        )
        parts: dict[str, list[Any]] = {}
        for node, ids, text in self.rows(
            "SELECT node, ids, text FROM parts JOIN nodes ON nodes.id = node "
            f"WHERE {_NAMED} AND tenant = ? ORDER BY node, number",
            [name, name, tenant],
        ):
            parts.setdefault(node, []).append((ids, text))
        return [_stored(row, parts.get(row[0], [])) for row in rows]

    def outline(self, tenant: str, name: str) -> list[TurnOutline]:
        """Return the turns of a tenant's conversation, oldest first; of a turn, those of its own.

        No text is read.
        """
        rows = self.rows(
            "SELECT nodes.id, parent, conversation, created, tokens, LENGTH(read_ids), sinks "
            "FROM nodes JOIN conversations ON conversations.id = conversation "
            "WHERE conversation = COALESCE((SELECT conversation FROM nodes WHERE id = ?), ?) "
            "AND nodes.tenant = ? AND hash IS NOT NULL ORDER BY nodes.tick, created",
            [name, name, tenant],
        )
        return [TurnOutline(*row) for row in rows]

    def expired_conversations(
        self, aged_before: float, *, is_single: bool = False
    ) -> list[tuple[str, int]]:
        """Return the conversations not used since an age of the store, and their last ticks.

        With `is_single`, only single turns that were never continued.
        """
        single = "AND is_single = 1 " if is_single else ""
        query = f"SELECT id, tick FROM conversations WHERE aged < ? {single}ORDER BY aged, tick"
        return [(name, tick) for name, tick in self.rows(query, [aged_before])]

    def surplus_conversations(self, most: int) -> list[tuple[str, int]]:
        """Return each tenant's conversations beyond a given number, oldest first."""
        query = (
            "SELECT id, tick FROM (SELECT id, tick, ROW_NUMBER() OVER (PARTITION BY tenant "
            "ORDER BY tick DESC) AS place FROM conversations) AS placed WHERE place > ? "
            "ORDER BY tick"
        )
        return [(name, tick) for name, tick in self.rows(query, [most])]

    def conversations_by_use(self, tenant: str) -> list[tuple[str, int, int]]:
        """Return a tenant's conversations, oldest use first, with its tick and their bytes."""
        query = "SELECT id, tick, bytes FROM conversations WHERE tenant = ? ORDER BY tick"
        return [(name, tick, int(size)) for name, tick, size in self.rows(query, [tenant])]

    def shares(self) -> dict[str, int]:
        """Return the bytes of each tenant's turns and snapshots."""
        query = (
            "SELECT tenant, SUM(bytes) FROM (SELECT tenant, bytes FROM conversations UNION ALL "
            "SELECT tenant, bytes FROM promises UNION ALL SELECT tenant, snapshots.bytes "
            "FROM snapshots JOIN conversations ON conversations.id = conversation) AS kept "
            "GROUP BY tenant"
        )
        return {tenant: int(size) for tenant, size in self.rows(query)}

    def usage(self) -> Usage:
        """Return the bytes in use, not counting what deletions have freed."""
        (snapshots,) = self.rows("SELECT COALESCE(SUM(bytes), 0) FROM snapshots")[0]
        return Usage(self._transcript_bytes(), int(snapshots))

    # ---- snapshots -------------------------------------------------------------------------------

    def snapshot_of(self, node_id: str) -> str | None:
        """Return the name of the file with a snapshot of a turn's end."""
        rows = self.rows("SELECT file FROM snapshots WHERE node = ?", [node_id])
        return str(rows[0][0]) if rows else None

    def saved_tokens(self, node_id: str) -> int:
        """Return the tokens up to the last state that has a snapshot: this one, or one before it.

        A state is a turn or a settled form.
        """
        rows = self.rows(
            "WITH RECURSIVE path(id, base, tokens) AS ("
            f"SELECT id, {_BASE.format('')}, tokens FROM nodes WHERE id = ? UNION ALL "
            "SELECT id, base, tokens FROM forms WHERE id = ? UNION ALL "
            f"SELECT path.base, COALESCE({_BASE.format('nodes.')}, forms.base), "
            "COALESCE(nodes.tokens, forms.tokens) FROM path "
            "LEFT JOIN nodes ON nodes.id = path.base "
            "LEFT JOIN forms ON forms.id = path.base WHERE path.base IS NOT NULL) "
            "SELECT MAX(tokens) FROM path JOIN snapshots ON node = id",
            [node_id, node_id],
        )
        return int(rows[0][0] or 0)

    def oldest_snapshots(self, tenant: str | None = None) -> list[tuple[str, int]]:
        """Return the snapshots of a tenant, or of all, and their sizes, oldest first."""
        query = "SELECT node, snapshots.bytes FROM snapshots"
        if tenant is None:
            return list(self.rows(f"{query} ORDER BY tick"))
        query += " JOIN conversations ON conversations.id = conversation WHERE tenant = ?"
        return list(self.rows(f"{query} ORDER BY snapshots.tick", [tenant]))

    # ---- running turns ---------------------------------------------------------------------------

    def session_of(self, name: str) -> str | None:
        """Return the conversation of a turn, which may be running, or the conversation itself."""
        rows = self.rows(
            "SELECT conversation FROM nodes WHERE id = ? "
            "UNION SELECT id FROM conversations WHERE id = ?",
            [name, name],
        )
        return str(rows[0][0]) if rows else None

    def unfinished_session(self, tenant: str, node_id: str) -> str | None:
        """Return the conversation of a tenant's turn that is running, or whose process has died."""
        rows = self.rows(
            "SELECT conversation FROM nodes WHERE id = ? AND tenant = ? AND hash IS NULL",
            [node_id, tenant],
        )
        return str(rows[0][0]) if rows else None

    def is_running(self, session: str) -> bool:
        """Return whether a turn of a conversation is running, or was when its process died."""
        query = "SELECT 1 FROM nodes WHERE conversation = ? AND hash IS NULL LIMIT 1"
        return bool(self.rows(query, [session]))

    # ---- writing ---------------------------------------------------------------------------------

    def write_with(self, writer: Writer) -> None:
        """Write through `writer`, and delete the files that it frees; called once."""
        self._writer = writer
        self._deletions = FileDeletions(self.files)
        writer.on_freed = self.delete_file

    def end_writing(self) -> None:
        """Write what is queued, and wait for the files that are being deleted."""
        self._writer.close()
        self.files.close()

    def submit(self, job: Job[_Result]) -> Future[_Result]:
        """Queue a job for the writing thread; wait only while its queue is full.

        Raises:
            StoreError: The store is closed, or no longer there.
        """
        if self.lost is not None:
            raise StoreError(self.lost)
        return self._writer.submit(job)

    def try_submit(self, job: Job[_Result]) -> Future[_Result] | None:
        """Queue a job if there is room; return None if there is not. Never waits."""
        return self._writer.try_submit(job)

    def write_queued(self) -> None:
        """Wait until what has been queued is written. Blocks briefly."""
        self.submit(lambda _: None).result()

    # ---- snapshots, in a job ---------------------------------------------------------------------

    def free(self, *files: str, cleans: bool = False) -> None:
        """Delete files after the commit of the job that calls this.

        Args:
            files: Their names.
            cleans: Whether text was deleted, of which no copy may be left.
        """
        self._writer.freed.extend(files)
        self._writer.must_clean |= cleans

    def remove_snapshot(self, connection: Connection, node_id: str, but: str = "") -> None:
        """Delete a snapshot and its file, unless its name is `but`."""
        found = connection.execute("SELECT file FROM snapshots WHERE node = ?", [node_id])
        row = found.fetchone()
        if row is not None and row[0] != but:
            delete_snapshots(connection, [node_id])
            self.free(row[0])

    # ---- files that no row names -----------------------------------------------------------------

    def delete_file(self, name: str) -> None:
        """Delete a file soon. Does not fail: a file that remains is deleted by a later sweep."""
        self._deletions.delete(name)

    def delete_loose_files(self) -> None:
        """Delete files of deleted snapshots, and those whose writer has died, once they are old.

        Raises:
            StoreError: The store cannot be read or written.
        """
        gone = self._deletions.take_gone()
        if gone:
            self.submit(lambda connection: forget(connection, gone)).result()
        rows = self.rows(
            f"SELECT file, is_doomed, {self.age} - since FROM loose_files "
            f"WHERE since <= {self.age} - ? ORDER BY since LIMIT ?",
            [DOOMED_S, AT_ONCE],
        )
        late = [file for file, is_doomed, age in rows if not is_doomed and age >= WRITING_S]
        if late:  # their writers can no longer add them, and the next sweep deletes them
            self.submit(lambda connection: doom(connection, late)).result()
        for file, is_doomed, _ in rows:
            if is_doomed:
                self.delete_file(file)


def _node(row: Sequence[Any]) -> Node:
    *facts, session_key, finish_reason, is_after_settled, is_settled = row
    ended = (_text(session_key), finish_reason, bool(is_after_settled), bool(is_settled))
    values: Sequence[Any] = (*facts, *ended)
    return Node(*values)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _stored(row: Sequence[Any], parts: Sequence[Any]) -> StoredTurn:
    node, parent, conversation, session_key, *facts, messages, given, read_ids = row[:-3]
    form_tokens, form_ids, sinks = row[-3:]
    reply_ids = b"".join(ids for ids, _ in parts)
    reply = b"".join(text for _, text in parts).decode()
    texts = (json.loads(messages), given.decode())
    tokens = (array("i", read_ids), array("i", reply_ids))
    values: Sequence[Any] = (
        node, parent, conversation, _text(session_key), *facts, *texts, *tokens, reply,
        form_tokens, array("i", form_ids or b""), sinks,
    )  # fmt: skip
    return StoredTurn(*values)
