"""The tables of a store: the same in SQLite and in PostgreSQL."""

from __future__ import annotations

VERSION = 5
"""The version of the tables. A store with a different version is refused."""

TABLES = {
    # Key "secret" makes hashes useless elsewhere; key "model" is what the store belongs to.
    "meta": "key TEXT PRIMARY KEY, value BLOB NOT NULL",
    "conversations": "id TEXT PRIMARY KEY, tenant TEXT NOT NULL, used REAL NOT NULL, "
    "title BLOB NOT NULL",
    # Who may write a conversation; there is a row for each. `replica` is '' after it was given up.
    "owners": "session TEXT PRIMARY KEY, replica TEXT NOT NULL, epoch INTEGER NOT NULL",
    # Processes that use the store, and when each said so last, by the store's clock.
    "replicas": "name TEXT PRIMARY KEY, address TEXT NOT NULL, seen REAL NOT NULL",
    # `hash`, `last_id` and `finish_reason` are NULL while the turn is running; `tokens` then counts
    # up to the reply's beginning. Text of clients and of models is UTF-8: it may contain NUL.
    "nodes": "id TEXT PRIMARY KEY, parent TEXT, conversation TEXT NOT NULL, tenant TEXT NOT NULL, "
    "session_key BLOB, hash BLOB, tokens INTEGER NOT NULL, last_id INTEGER, finish_reason TEXT, "
    "read_ids BLOB NOT NULL, messages TEXT NOT NULL, before BLOB NOT NULL, given BLOB NOT NULL, "
    "created REAL NOT NULL, record TEXT NOT NULL, note TEXT NOT NULL, "
    "is_after_settled INTEGER NOT NULL, is_settled INTEGER NOT NULL",
    # Settled forms of turns; see `node.py`. `base` is the id of a turn, or of another form.
    "forms": "id TEXT PRIMARY KEY, base TEXT, tokens INTEGER NOT NULL, ids BLOB NOT NULL",
    # A reply, in the pieces in which it was committed: int32 ids and their text.
    "parts": "node TEXT NOT NULL, number INTEGER NOT NULL, ids BLOB NOT NULL, text BLOB NOT NULL, "
    "PRIMARY KEY (node, number)",
    # A row exists only if its file is complete.
    "snapshots": "node TEXT PRIMARY KEY, conversation TEXT NOT NULL, bytes INTEGER NOT NULL, "
    "created REAL NOT NULL, file TEXT NOT NULL",
    # Files that no row of `snapshots` names, and since when: new ones, which are being written, and
    # doomed ones, which are to be deleted.
    "loose_files": "file TEXT PRIMARY KEY, since REAL NOT NULL, is_doomed INTEGER NOT NULL",
}
INDEXES = {
    "nodes_by_hash": "nodes (hash)",
    "nodes_by_parent": "nodes (parent)",
    "nodes_by_conversation": "nodes (conversation)",
    "conversations_by_use": "conversations (used)",
    "conversations_by_tenant": "conversations (tenant, used)",
    "snapshots_by_conversation": "snapshots (conversation)",
}


def columns_of(table: str) -> list[str]:
    """Return the names of a table's columns."""
    return [column.split()[0] for column in TABLES[table].split(", PRIMARY")[0].split(", ")]
