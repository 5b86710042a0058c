"""The tree of turns in one SQLite file, and the snapshots of sessions next to it.

    STORE/            0700
      lock            held by the server that uses the store
      turns.sqlite    0600, and its WAL
      snapshots/ab/resp_ab….session

Any thread may call any method. Reads use a connection of their thread, and see what was committed;
writes go through `Writer`, in order. Knows nothing of models or sessions in memory.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream.server.conversations.canonical import ReplyHash
from sinkstream.server.conversations.node import NewNode, Node
from sinkstream.server.conversations.schema import connect, lock_folder, open_database
from sinkstream.server.conversations.store_error import StoreError, store_error
from sinkstream.server.conversations.transcript import StoredTurn
from sinkstream.server.conversations.writer import Writer
from sinkstream.server.turns import TurnText

_NODE = (
    "nodes.id, parent, conversation, nodes.tenant, hash, tokens, last_id, "
    "session_key, finish_reason"
)
_HASHES_AT_ONCE = 500  # in a query, at most
_HASHES_FIRST = 4  # in the first one, which finds a history that is resent as it was
_TITLE = 80  # characters
_SNAPSHOTS_KEPT = 2  # of a conversation: its head and the one before


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk."""

    transcripts: int
    snapshots: int


class SqliteStore:
    """A store that is open. Created by `SqliteStore.open`."""

    @classmethod
    def open(cls, folder: Path, model: str, *, full_sync: bool = False) -> SqliteStore:
        """Open a store, or create it; close the turns that were running when its server died.

        Args:
            folder: Where it is.
            model: Identifies the model, its S and W, and its chat template.
            full_sync: Whether every commit also survives a power cut.

        Raises:
            StoreError: It cannot be used; the message says why.
        """
        lock = lock_folder(folder)
        try:
            connection = open_database(folder / "turns.sqlite", model, full_sync=full_sync)
            return cls(folder, connection, lock)
        except BaseException:
            os.close(lock)
            raise

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: int) -> None:
        self._path = folder / "turns.sqlite"
        self._snapshots = folder / "snapshots"
        self._connection = connection
        self._lock = lock
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._is_closed = False
        try:
            _close_unfinished(connection)
            self._delete_orphans()
            (self.secret,) = connection.execute(
                "SELECT value FROM meta WHERE key = 'secret'"
            ).fetchone()
        except (sqlite3.Error, OSError) as error:
            connection.close()
            raise store_error(self._path, error) from error
        self._writer = Writer(connection, self._path)

    def close(self) -> None:
        """Write what is queued, and close the file. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        for reader in self._readers:
            reader.close()
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        os.close(self._lock)

    # ---- reading ---------------------------------------------------------------------------------

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        reader: sqlite3.Connection | None = getattr(self._local, "connection", None)
        try:
            if reader is None:
                reader = self._local.connection = connect(self._path)
                self._readers.append(reader)
            return reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise store_error(self._path, error) from error

    def node(self, node_id: str) -> Node | None:
        """Return a completed turn."""
        rows = self._rows(f"SELECT {_NODE} FROM nodes WHERE id = ? AND hash IS NOT NULL", [node_id])
        return _node(rows[0]) if rows else None

    def find(self, tenant: str, hashes: Sequence[bytes]) -> list[Node]:
        """Return the completed turns of a tenant with the first of some hashes that has any.

        The most recently used conversation comes first.
        """
        begin, count = 0, _HASHES_FIRST
        while some := hashes[begin : begin + count]:
            marks = ",".join("?" * len(some))
            rows = self._rows(
                f"SELECT {_NODE} FROM nodes JOIN conversations AS c ON c.id = conversation "
                f"WHERE hash IN ({marks}) AND nodes.tenant = ? ORDER BY c.used DESC, created DESC",
                [*some, tenant],
            )
            if rows:
                found = [_node(row) for row in rows]
                longest = min(found, key=lambda node: some.index(node.hash)).hash
                return [node for node in found if node.hash == longest]
            begin, count = begin + count, min(4 * count, _HASHES_AT_ONCE)
        return []

    def ids_of(self, node_id: str) -> array[int]:
        """Return the ids that a turn read and generated."""
        ids: array[int] = array("i")
        for (read,) in self._rows("SELECT read_ids FROM nodes WHERE id = ?", [node_id]):
            ids.frombytes(read)
        for (part,) in self._rows(
            "SELECT ids FROM parts WHERE node = ? ORDER BY number", [node_id]
        ):
            ids.frombytes(part)
        return ids

    def text_of(self, tenant: str, node_id: str) -> TurnText | None:
        """Return a completed turn of a tenant, as text."""
        rows = self._rows(
            "SELECT parent, messages, given, finish_reason, created, record, note FROM nodes "
            "WHERE id = ? AND tenant = ? AND hash IS NOT NULL",
            [node_id, tenant],
        )
        if not rows:
            return None
        parts = self._rows("SELECT text FROM parts WHERE node = ? ORDER BY number", [node_id])
        parent, messages, given, finish_reason, created, record, note = rows[0]
        return TurnText(
            parent,
            json.loads(messages),
            given,
            "".join(text for (text,) in parts),
            finish_reason,
            created,
            record,
            note,
        )

    def has_snapshot(self, node_id: str) -> bool:
        """Return whether there is a snapshot of a turn's end."""
        return bool(self._rows("SELECT 1 FROM snapshots WHERE node = ?", [node_id]))

    def saved_tokens(self, node_id: str) -> int:
        """Return the tokens up to the last turn that has a snapshot: this one, or one before it."""
        rows = self._rows(
            "WITH RECURSIVE path(id, parent, tokens) AS (SELECT id, parent, tokens FROM nodes "
            "WHERE id = ? UNION ALL SELECT nodes.id, nodes.parent, nodes.tokens FROM nodes "
            "JOIN path ON nodes.id = path.parent) "
            "SELECT MAX(tokens) FROM path JOIN snapshots ON node = id",
            [node_id],
        )
        return int(rows[0][0] or 0)

    def conversations(self, tenant: str) -> list[tuple[str, float]]:
        """Return a tenant's conversations and when each was used, the latest first."""
        return [
            (name, used)
            for name, used in self._rows(
                "SELECT id, used FROM conversations WHERE tenant = ? ORDER BY used DESC", [tenant]
            )
        ]

    def nodes_of(self, conversation: str) -> list[Node]:
        """Return a conversation's completed turns, the oldest first."""
        rows = self._rows(
            f"SELECT {_NODE} FROM nodes WHERE conversation = ? AND hash IS NOT NULL "
            "ORDER BY created",
            [conversation],
        )
        return [_node(row) for row in rows]

    def titles(self, tenant: str) -> dict[str, str]:
        """Return the beginning of the first user message of a tenant's conversations."""
        rows = self._rows(
            "SELECT c.id, (SELECT SUBSTR(json_extract(m.value, '$.content'), 1, ?1) "
            "FROM nodes, json_each(nodes.messages) AS m "
            "WHERE nodes.conversation = c.id AND nodes.parent IS NULL "
            "AND json_extract(m.value, '$.role') = 'user' ORDER BY created LIMIT 1) "
            "FROM conversations AS c WHERE c.tenant = ?2",
            [_TITLE, tenant],
        )
        return {name: title or "" for name, title in rows}

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Return a tenant's completed turns of a conversation, the oldest first; or one turn."""
        rows = self._rows(
            "SELECT id, parent, conversation, session_key, created, finish_reason, tokens, "
            "messages, given, read_ids FROM nodes WHERE ?1 IN (conversation, id) "
            "AND tenant = ?2 AND hash IS NOT NULL ORDER BY created",
            [name, tenant],
        )
        parts: dict[str, list[Any]] = {}
        for node, ids, text in self._rows(
            "SELECT node, ids, text FROM parts JOIN nodes ON nodes.id = node "
            "WHERE ?1 IN (conversation, nodes.id) AND tenant = ?2 ORDER BY node, number",
            [name, tenant],
        ):
            parts.setdefault(node, []).append((ids, text))
        return [_stored(row, parts.get(row[0], [])) for row in rows]

    def usage(self) -> Usage:
        """Return the bytes in use, without what deletions have freed."""
        pages, free, size = (
            self._rows(f"PRAGMA {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        (snapshots,) = self._rows("SELECT COALESCE(SUM(bytes), 0) FROM snapshots")[0]
        return Usage((pages - free) * size, snapshots)

    # ---- writing ---------------------------------------------------------------------------------

    def begin(self, new: NewNode) -> None:
        """Queue the beginning of a turn, which is found only once it is finished."""
        now = time.time()

        def job(connection: sqlite3.Connection) -> None:
            if new.parent is not None and not _exists(connection, new.parent):
                raise StoreError(
                    f"store: the turn {new.parent} was deleted, so {new.id} is not kept."
                )
            connection.execute(
                "INSERT INTO conversations VALUES (?1, ?2, ?3) "
                "ON CONFLICT (id) DO UPDATE SET used = ?3",
                (new.conversation, new.tenant, now),
            )
            connection.execute(
                "INSERT INTO nodes "
                "VALUES (?, ?, ?, ?, ?, NULL, ?, NULL, NULL, ?, ?, ?, ?, ?, ?, '')",
                (
                    new.id, new.parent, new.conversation, new.tenant, new.session_key, new.tokens,
                    new.read_ids.tobytes(), new.messages, new.before, new.given, now,
                    new.record,
                ),
            )  # fmt: skip

        self._writer.submit(job)

    def try_add_part(self, node_id: str, number: int, ids: array[int], text: str) -> bool:
        """Queue a part of a running reply if there is room; return whether there was."""
        row = (node_id, number, ids.tobytes(), text)
        return self._writer.try_submit(lambda connection: _insert_part(connection, row))

    def finish(self, node: Node, number: int, ids: array[int], text: str) -> Future[None]:
        """Queue the last part of a reply and its turn's end; the future is done once committed."""
        row = (node.id, number, ids.tobytes(), text)

        def job(connection: sqlite3.Connection) -> None:
            if ids or text:
                _insert_part(connection, row)
            changed = connection.execute(
                "UPDATE nodes SET hash = ?1, tokens = ?2, last_id = ?3, finish_reason = ?4 "
                "WHERE id = ?5 AND ?2 = tokens + "
                "(SELECT COALESCE(SUM(LENGTH(ids)), 0) / 4 FROM parts WHERE node = ?5)",
                (node.hash, node.tokens, node.last_id, node.finish_reason, node.id),
            ).rowcount
            if changed != 1:  # an earlier write has failed, or the turn was deleted
                raise StoreError(
                    f"store: a part of the turn {node.id} was not written, so that the turn cannot "
                    "be kept. The log says why."
                )
            connection.execute(
                "UPDATE conversations SET used = ? WHERE id = ?", (time.time(), node.conversation)
            )

        return self._writer.submit(job)

    def forget(self, node_id: str) -> Future[None]:
        """Queue the deletion of a turn that left nothing."""
        return self._writer.submit(lambda connection: _delete_nodes(connection, [node_id]))

    def note(self, node_id: str, note: str) -> Future[None]:
        """Queue a note on a turn."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE nodes SET note = ? WHERE id = ?", [note, node_id])

        return self._writer.submit(job)

    def delete_tree(self, node_id: str) -> Future[None]:
        """Delete a turn and all that follow it."""
        below = (
            "WITH RECURSIVE below(id) AS (VALUES (?) UNION ALL SELECT nodes.id FROM nodes "
            "JOIN below ON nodes.parent = below.id) SELECT id FROM below"
        )

        return self._deletion(below, node_id)

    def delete_conversation(self, conversation: str) -> Future[None]:
        """Delete all turns of a conversation."""
        return self._deletion("SELECT id FROM nodes WHERE conversation = ?", conversation)

    def _deletion(self, query: str, name: str) -> Future[None]:
        """Delete the turns that a query with one value finds, and a conversation of that name."""

        def job(connection: sqlite3.Connection) -> None:
            ids = [row[0] for row in connection.execute(query, [name])]
            _delete_nodes(connection, ids)
            connection.execute("DELETE FROM conversations WHERE id = ?", [name])
            self._writer.must_truncate = True
            for node_id in ids:
                self.snapshot_path(node_id).unlink(missing_ok=True)

        done = self._writer.submit(job)
        self._writer.submit(_shrink)
        return done

    # ---- snapshots -------------------------------------------------------------------------------

    def snapshot_path(self, node_id: str) -> Path:
        """Return where a turn's snapshot is, or would be."""
        digits = node_id.rpartition("_")[2]
        return self._snapshots / digits[:2] / f"{node_id}.session"

    def add_snapshot(self, node: Node) -> None:
        """Record a snapshot whose file is complete; delete older ones of its conversation."""
        path = self.snapshot_path(node.id)
        size = path.stat().st_size

        def job(connection: sqlite3.Connection) -> None:
            if not _exists(connection, node.id):  # deleted meanwhile
                path.unlink(missing_ok=True)
                return
            connection.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)",
                (node.id, node.conversation, size, time.time()),
            )
            rows = connection.execute(
                "SELECT node FROM snapshots WHERE conversation = ? ORDER BY created DESC",
                [node.conversation],
            ).fetchall()
            for (old,) in rows[_SNAPSHOTS_KEPT:]:
                self._remove(connection, old)

        self._writer.submit(job).result()

    def drop_snapshot(self, node_id: str) -> None:
        """Delete a snapshot."""
        self._writer.submit(lambda connection: self._remove(connection, node_id)).result()

    def oldest_snapshots(self) -> Iterator[tuple[str, int]]:
        """Yield all snapshots and their sizes, the oldest first."""
        yield from self._rows("SELECT node, bytes FROM snapshots ORDER BY created")

    def oldest_conversations(self, used_before: float) -> list[str]:
        """Return the conversations not used since a time, the oldest first."""
        query = "SELECT id FROM conversations WHERE used < ? ORDER BY used"
        return [row[0] for row in self._rows(query, [used_before])]

    def surplus_conversations(self, most: int) -> list[str]:
        """Return what each tenant has beyond a number of conversations, the oldest first."""
        query = (
            "SELECT id FROM (SELECT id, used, ROW_NUMBER() OVER (PARTITION BY tenant "
            "ORDER BY used DESC) AS rank FROM conversations) WHERE rank > ? ORDER BY used"
        )
        return [row[0] for row in self._rows(query, [most])]

    def _remove(self, connection: sqlite3.Connection, node_id: str) -> None:
        connection.execute("DELETE FROM snapshots WHERE node = ?", [node_id])
        self.snapshot_path(node_id).unlink(missing_ok=True)

    def _delete_orphans(self) -> None:
        """Delete files without a row, and rows without a file."""
        self._snapshots.mkdir(mode=0o700, exist_ok=True)
        rows = {row[0] for row in self._connection.execute("SELECT node FROM snapshots")}
        for path in self._snapshots.rglob("*"):
            if path.is_file() and path.stem not in rows:
                path.unlink()
        missing = [(row,) for row in rows if not self.snapshot_path(row).exists()]
        self._connection.executemany("DELETE FROM snapshots WHERE node = ?", missing)


def _node(row: Sequence[Any]) -> Node:
    return Node(*row)


def _stored(row: Sequence[Any], parts: Sequence[Any]) -> StoredTurn:
    *facts, messages, given, read_ids = row
    reply_ids = b"".join(ids for ids, _ in parts)
    reply = "".join(text for _, text in parts)
    texts = (json.loads(messages), given)
    tokens = (array("i", read_ids), array("i", reply_ids))
    values: Sequence[Any] = (*facts, *texts, *tokens, reply)
    return StoredTurn(*values)


def _insert_part(connection: sqlite3.Connection, row: tuple[str, int, bytes, str]) -> None:
    if _exists(connection, row[0]):
        connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?)", row)


def _exists(connection: sqlite3.Connection, node_id: str) -> bool:
    found = connection.execute("SELECT 1 FROM nodes WHERE id = ?", [node_id])
    return found.fetchone() is not None


def _delete_nodes(connection: sqlite3.Connection, ids: Sequence[str]) -> None:
    rows = [(node_id,) for node_id in ids]
    owners = {
        row for one in rows
        for row in connection.execute("SELECT conversation FROM nodes WHERE id = ?", one).fetchall()
    }  # fmt: skip
    for table, key in (("parts", "node"), ("snapshots", "node"), ("nodes", "id")):
        connection.executemany(f"DELETE FROM {table} WHERE {key} = ?", rows)
    connection.executemany(
        "DELETE FROM conversations WHERE id = ?1 "
        "AND NOT EXISTS (SELECT 1 FROM nodes WHERE conversation = ?1)",
        list(owners),
    )


def _shrink(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA incremental_vacuum").fetchall()


def _close_unfinished(connection: sqlite3.Connection) -> None:
    """Close the turns that a dead server left; delete those that had generated nothing."""
    rows = connection.execute(
        "SELECT id, before, given, tokens FROM nodes WHERE hash IS NULL"
    ).fetchall()
    connection.execute("BEGIN IMMEDIATE")
    for node_id, before, given, tokens in rows:
        reply = ReplyHash(before)
        reply.add(given)
        ids: array[int] = array("i")
        parts = connection.execute(
            "SELECT number, ids, text FROM parts WHERE node = ? ORDER BY number", [node_id]
        ).fetchall()
        for expected, (number, part, text) in enumerate(parts):
            if number != expected:  # the write of one failed: the reply ends before it
                gap = (node_id, expected)
                connection.execute("DELETE FROM parts WHERE node = ? AND number > ?", gap)
                break
            ids.frombytes(part)
            reply.add(text)
        if not ids:
            _delete_nodes(connection, [node_id])
            continue
        connection.execute(
            "UPDATE nodes SET hash = ?, tokens = ?, last_id = ?, finish_reason = 'interrupted' "
            "WHERE id = ?",
            (reply.digest(), tokens + len(ids), ids[-1], node_id),
        )
    connection.execute("COMMIT")
