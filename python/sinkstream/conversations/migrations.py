"""Brings the tables of earlier versions up to the present one, in the caller's transaction.

Either the whole transaction is committed, or the store is as it was. Nothing here says which
database it is: `Migration.execute` translates the types of columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from sinkstream.conversations.database import INDEXES, SERVED, TABLES, VERSION, Connection

OLDEST = 1
_TITLE = 80  # characters
_TURN_BYTES = 512
_TEXTS = ("session_key", "read_ids", "messages", "given", "record", "note")


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration in progress."""

    connection: Connection
    typed: Callable[[str], str]
    """Returns the columns of a table with the types of the database."""
    can_drop_defaults: bool

    def execute(self, statement: str) -> None:
        """Run a statement."""
        self.connection.execute(statement)

    def create(self, table: str, columns: str) -> None:
        """Create a table."""
        self.execute(f"CREATE TABLE {table} ({self.typed(columns)})")

    def add(self, table: str, column: str, kind: str, default: object) -> None:
        """Add a column, in which all rows have a value."""
        kind = self.typed(f" {kind}")
        self.execute(f"ALTER TABLE {table} ADD COLUMN {column}{kind} NOT NULL DEFAULT {default}")
        if self.can_drop_defaults:  # a server of the version before must not write without it
            self.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")

    def rebuild(self, table: str, columns: str, values: str) -> None:
        """Replace a table by one with other columns, whose values are expressions of the old."""
        self.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        self.create(table, columns)
        self.execute(f"INSERT INTO {table} SELECT {values} FROM old_{table}")
        self.execute(f"DROP TABLE old_{table}")


def migrate(migration: Migration, version: int) -> None:
    """Bring tables of an earlier version up to `VERSION`, but for the number itself."""
    for number in range(version, VERSION):
        _STEPS[number](migration)
    for index, columns in INDEXES.items():
        migration.execute(f"CREATE INDEX IF NOT EXISTS {index} ON {columns}")


# ---- steps ---------------------------------------------------------------------------------------
# Each has the columns as they were then: `TABLES` changes with each version.


def _records(to: Migration) -> None:
    """2: turns have the caller's own record and note."""
    for column in ("record", "note"):
        to.add("nodes", column, "TEXT", "''")


def _owners(to: Migration) -> None:
    """3: conversations have owners and titles, texts are bytes, and files have their own names.

    The files of earlier snapshots had the names of turns. They are deleted, and their turns read
    again from their tokens.
    """
    to.rebuild(
        "conversations",
        "id TEXT PRIMARY KEY, tenant TEXT NOT NULL, used REAL NOT NULL, title BLOB NOT NULL",
        "id, tenant, used, CAST('' AS BLOB)",
    )
    roots = to.connection.execute("SELECT conversation, messages FROM nodes WHERE parent IS NULL")
    for conversation, messages in roots.fetchall():
        texts = [one["content"] for one in json.loads(messages) if one["role"] == "user"]
        title = str(texts[0] or "")[:_TITLE] if texts else ""
        to.connection.execute(
            "UPDATE conversations SET title = ? WHERE id = ?", (title.encode(), conversation)
        )
    to.create("owners", "session TEXT PRIMARY KEY, replica TEXT NOT NULL, epoch INTEGER NOT NULL")
    to.execute("INSERT INTO owners SELECT id, '', 1 FROM conversations")
    to.create("replicas", "name TEXT PRIMARY KEY, address TEXT NOT NULL, seen REAL NOT NULL")
    to.rebuild(
        "nodes",
        "id TEXT PRIMARY KEY, parent TEXT, conversation TEXT NOT NULL, tenant TEXT NOT NULL, "
        "session_key BLOB, hash BLOB, tokens INTEGER NOT NULL, last_id INTEGER, "
        "finish_reason TEXT, read_ids BLOB NOT NULL, messages TEXT NOT NULL, "
        "before BLOB NOT NULL, given BLOB NOT NULL, created REAL NOT NULL, record TEXT NOT NULL, "
        "note TEXT NOT NULL",
        "id, parent, conversation, tenant, CAST(session_key AS BLOB), hash, tokens, last_id, "
        "finish_reason, read_ids, messages, before, CAST(given AS BLOB), created, record, note",
    )
    to.rebuild(
        "parts",
        "node TEXT NOT NULL, number INTEGER NOT NULL, ids BLOB NOT NULL, text BLOB NOT NULL, "
        "PRIMARY KEY (node, number)",
        "node, number, ids, CAST(text AS BLOB)",
    )
    to.rebuild(
        "snapshots",
        "node TEXT PRIMARY KEY, conversation TEXT NOT NULL, bytes INTEGER NOT NULL, "
        "created REAL NOT NULL, file TEXT NOT NULL",
        "node, conversation, bytes, created, node || '.session'",
    )


def _loose_files(to: Migration) -> None:
    """4: files that no snapshot names are listed."""
    columns = "file TEXT PRIMARY KEY, since REAL NOT NULL, is_doomed INTEGER NOT NULL"
    to.create("loose_files", columns)
    with_old_names = "FROM snapshots WHERE file = node || '.session'"
    to.execute(f"INSERT INTO loose_files SELECT file, 0, 1 {with_old_names}")
    to.execute("DELETE FROM snapshots WHERE file = node || '.session'")


def _settled_forms(to: Migration) -> None:
    """5: turns have settled forms. Earlier turns are followed as they are, with their thoughts."""
    to.add("nodes", "is_after_settled", "INTEGER", 0)
    to.add("nodes", "is_settled", "INTEGER", 1)
    to.create("forms", "id TEXT PRIMARY KEY, base TEXT, tokens INTEGER NOT NULL, ids BLOB NOT NULL")


def _ticks(to: Migration) -> None:
    """6: the order of turns and their ages do not depend on clocks; sizes and S are kept.

    Earlier turns keep the order that clocks gave them. All ages begin now. Earlier conversations
    have the model's S, for which NULL stands.
    """
    to.add("nodes", "tick", "INTEGER", 0)  # not numbered: that would write the whole table
    for column, kind in (
        ("tick", "INTEGER"), ("aged", "REAL"), ("bytes", "INTEGER"), ("is_single", "INTEGER")
    ):  # fmt: skip
        to.add("conversations", column, kind, 0)
    to.execute(f"ALTER TABLE conversations ADD COLUMN sinks{to.typed(' INTEGER')}")
    to.execute(
        "CREATE TABLE found AS SELECT id, ROW_NUMBER() OVER (ORDER BY used, id) AS tick, "
        f"COALESCE(sizes.bytes, 0) AS bytes FROM conversations LEFT JOIN ({_sizes(to.connection)}) "
        "AS sizes ON conversation = id"
    )
    to.execute("CREATE UNIQUE INDEX found_by_id ON found (id)")
    of_found = "(SELECT {0} FROM found WHERE found.id = conversations.id)"
    to.execute(
        f"UPDATE conversations SET tick = {of_found.format('tick')}, "
        f"bytes = {of_found.format('bytes')}"
    )
    to.execute("DROP TABLE found")
    to.execute("DROP INDEX IF EXISTS conversations_by_use")
    to.execute("DROP INDEX IF EXISTS conversations_by_tenant")
    to.rebuild(
        "snapshots",
        "node TEXT PRIMARY KEY, conversation TEXT NOT NULL, bytes INTEGER NOT NULL, "
        "tick INTEGER NOT NULL, file TEXT NOT NULL",
        "node, conversation, bytes, ROW_NUMBER() OVER (ORDER BY created, node), file",
    )
    to.execute("UPDATE loose_files SET since = 0")
    to.connection.execute("INSERT INTO meta VALUES (?, ?)", (SERVED, b"0"))
    to.create("promises", TABLES["promises"])


def _sizes(connection: Connection) -> str:
    """Return a query for the bytes of conversations."""
    size = connection.size.format
    node = " + ".join(f"COALESCE({size(one)}, 0)" for one in _TEXTS)
    return (
        "SELECT conversation, SUM(size) AS bytes FROM ("
        f"SELECT conversation, {_TURN_BYTES} + {node} AS size FROM nodes UNION ALL "
        f"SELECT conversation, {size('ids')} + {size('text')} FROM parts JOIN nodes ON id = node "
        f"UNION ALL SELECT conversation, {size('forms.ids')} FROM nodes JOIN forms "
        "ON forms.id = nodes.id || '-settled') AS kept GROUP BY conversation"
    )


_STEPS: dict[int, Callable[[Migration], None]] = {
    OLDEST: _records,
    2: _owners,
    3: _loose_files,
    4: _settled_forms,
    5: _ticks,
}
"""By the version that each begins with."""
