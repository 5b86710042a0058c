"""The database file: its tables, how it is created, opened and checked, and who may use it."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from pathlib import Path

from sinkstream.server.conversations.store_error import StoreError, store_error

VERSION = 2
"""`PRAGMA user_version`."""

TABLES = {
    # Key "secret" makes hashes useless elsewhere; key "model" is what the store belongs to.
    "meta": "key TEXT PRIMARY KEY, value NOT NULL",
    "conversations": "id TEXT PRIMARY KEY, tenant TEXT NOT NULL, used REAL NOT NULL",
    # `hash`, `last_id` and `finish_reason` are NULL while the turn is running; `tokens` then counts
    # up to the reply's beginning.
    "nodes": "id TEXT PRIMARY KEY, parent TEXT, conversation TEXT NOT NULL, tenant TEXT NOT NULL, "
    "session_key TEXT, hash BLOB, tokens INTEGER NOT NULL, last_id INTEGER, finish_reason TEXT, "
    "read_ids BLOB NOT NULL, messages TEXT NOT NULL, before BLOB NOT NULL, given TEXT NOT NULL, "
    "created REAL NOT NULL, record TEXT NOT NULL, note TEXT NOT NULL",
    # A reply, in the pieces in which it was committed: int32 ids and their text.
    "parts": "node TEXT NOT NULL, number INTEGER NOT NULL, ids BLOB NOT NULL, text TEXT NOT NULL, "
    "PRIMARY KEY (node, number)",
    # A row exists only if its file is complete.
    "snapshots": "node TEXT PRIMARY KEY, conversation TEXT NOT NULL, bytes INTEGER NOT NULL, "
    "created REAL NOT NULL",
}
_INDEXES = {
    "nodes_by_hash": "nodes (hash)",
    "nodes_by_parent": "nodes (parent)",
    "nodes_by_conversation": "nodes (conversation)",
    "conversations_by_use": "conversations (used)",
    "conversations_by_tenant": "conversations (tenant, used)",
}
_BUSY_S = 10.0


def lock_folder(folder: Path) -> int:
    """Create a store's folder for its owner alone, and lock it; return the lock's descriptor.

    Raises:
        StoreError: It cannot be written, or another process uses it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise store_error(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"store: {folder} must be used by one server at a time, but another process uses it. "
            "Give this one another `store`."
        ) from None
    return lock


def connect(path: Path, *, full_sync: bool = False) -> sqlite3.Connection:
    """Open a connection with manual transactions.

    Args:
        path: The database.
        full_sync: Whether a commit also survives a power cut; all survive the end of the process.
    """
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
    connection.execute("PRAGMA secure_delete=ON")
    return connection


def open_database(path: Path, model: str, *, full_sync: bool) -> sqlite3.Connection:
    """Open the database for writing; create it if there is none.

    Args:
        path: The file.
        model: Identifies the model, its S and W, and its chat template.
        full_sync: As for `connect`.

    Raises:
        StoreError: It is no store, is damaged, read-only or full, or belongs to another model.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        connection = connect(path, full_sync=full_sync)
    except (OSError, sqlite3.Error) as error:
        raise store_error(path, error) from error
    try:
        _prepare(connection, path, model)
    except sqlite3.Error as error:
        connection.close()
        raise store_error(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, model: str) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if version == 0 and not names:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        _create(connection, model)
        return
    if version != VERSION:
        raise StoreError(
            f"store: {path} must have version {VERSION}, which this sinkstream reads, but has "
            f"version {version}. Give another `store`, or move the file away."
        )
    for table, columns in TABLES.items():
        expected = [column.split()[0] for column in columns.split(", PRIMARY")[0].split(", ")]
        found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if found != expected:
            raise StoreError(
                f"store: {path} must have a table `{table}` with the columns "
                f"{', '.join(expected)}, but has {', '.join(found) or 'none'}. It is damaged; move "
                "it away, and the server begins a new one."
            )
    connection.execute("PRAGMA journal_mode=WAL")
    found_model = connection.execute("SELECT value FROM meta WHERE key = 'model'").fetchone()
    if found_model is None or found_model[0] != model:
        raise StoreError(
            f"store: {path} must belong to this model and its settings, {model}, but belongs to "
            f"{found_model and found_model[0]}. Give another `store`."
        )
    connection.execute("BEGIN IMMEDIATE")  # says now, not after a reply, if it is read-only
    connection.execute("UPDATE meta SET value = value WHERE key = 'model'")
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection, model: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
    for index, columns in _INDEXES.items():
        connection.execute(f"CREATE INDEX {index} ON {columns}")
    values = [("secret", secrets.token_bytes(32)), ("model", model)]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
