"""A store in PostgreSQL, for replicas on several hosts; all hosts can reach the snapshots.

There are usually several replicas, so each has a name.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

from sinkstream.cluster.postgres_database import (
    PostgresWriteConnection,
    configure,
    conninfo_of,
    is_transient,
    marked,
    name_of,
    postgres_error,
    prepare,
)
from sinkstream.conversations.database import RETRY_S, Writer
from sinkstream.conversations.errors import StoreError, closed_error
from sinkstream.conversations.snapshot_files import SnapshotFiles
from sinkstream.conversations.store import Store

_T = TypeVar("_T")

_READERS = 8
_PAUSE_S = 0.05
_RECONNECT_S = 2.0
"""The pool waits longer after each failure; a new attempt is made when something is to be read."""


class PostgresStore(Store):
    """An open store. Created by `PostgresStore.open`."""

    clock = PostgresWriteConnection.clock
    age = PostgresWriteConnection.age
    counts_pages = False

    @classmethod
    def open(
        cls, address: str, model: str, *, files: Callable[[bytes], SnapshotFiles]
    ) -> PostgresStore:
        """Open a store, or create it.

        Args:
            address: `postgresql://user@host/database`.
            model: Identifies the model, its S and W, and its chat template.
            files: Opens the place for the snapshots of the store with a given secret.

        Raises:
            StoreError: It cannot be used; the message says why.
        """
        conninfo = conninfo_of(address)
        try:
            connection = PostgresWriteConnection(conninfo)
            try:
                _retried(partial(prepare, connection, conninfo, model))
                return cls(conninfo, connection, files)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise postgres_error(name_of(conninfo), error) from error

    def __init__(
        self,
        conninfo: str,
        connection: PostgresWriteConnection,
        files: Callable[[bytes], SnapshotFiles],
    ) -> None:
        self.name = name_of(conninfo)
        self._connection = connection
        self._is_closed = False
        row = connection.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()
        if row is None:
            raise StoreError(f"store: {self.name} must have a secret in `meta`, but has none.")
        (self.secret,) = row
        self.files = files(self.secret)
        self._pool = ConnectionPool(
            conninfo,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=_READERS,
            configure=configure,
            reconnect_timeout=_RECONNECT_S,
            open=True,
            name="sinkstream-readers",
        )
        self.write_with(Writer(connection))

    def close(self) -> None:
        """Write what is queued, and disconnect. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        self.end_writing()
        self._pool.close()
        self._connection.close()

    def _is_there(self) -> bool:
        query = "SELECT value FROM meta WHERE key = 'secret'"
        try:
            return self._read(query, ()) == [(self.secret,)]
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidCatalogName):
            return False
        except psycopg.Error as error:
            raise postgres_error(self.name, error) from error

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        if self._is_closed:
            raise closed_error()
        if any(isinstance(value, str) and "\0" in value for value in values):
            return []  # PostgreSQL has no such text

        try:
            return self._read(query, values)
        except psycopg.Error as error:
            raise postgres_error(self.name, error) from error

    def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        def read() -> list[Any]:
            with self._pool.connection(timeout=RETRY_S) as reader:
                return reader.execute(marked(query), values).fetchall()

        return _retried(read)

    def _transcript_bytes(self) -> int:
        rows = self.rows(
            "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM conversations) + "
            "(SELECT COALESCE(SUM(bytes), 0) FROM promises)"
        )
        return int(rows[0][0])


def _retried(call: Callable[[], _T]) -> _T:
    """Return what a call returns; try it again for a while after errors that may be transient."""
    until = time.monotonic() + RETRY_S
    while True:
        try:
            return call()
        except psycopg.Error as error:
            if not is_transient(error) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def own_name() -> str:
    """Return a name that no other process has."""
    host = "".join(letter for letter in socket.gethostname() if letter.isascii())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
