"""A store in one SQLite file, and the snapshots of sessions next to it.

    STORE/            0700
      lock            held by the server that uses the store, or by several that have names
      turns.sqlite    0600, and its WAL
      snapshots/ab/resp_ab….XXXXXXXX.session

Each read uses a connection that no other thread is using.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sinkstream.conversations.deletion import close_unfinished
from sinkstream.conversations.file_systems import check_folder
from sinkstream.conversations.snapshot_files import SnapshotFiles, SnapshotFolder
from sinkstream.conversations.sqlite_database import (
    SqliteWriteConnection,
    connect,
    lock_folder,
    open_database,
    sqlite_error,
)
from sinkstream.conversations.store import Store
from sinkstream.conversations.store_error import closed_error
from sinkstream.conversations.writer import Writer


class SqliteStore(Store):
    """An open store. Created by `SqliteStore.open`."""

    clock = SqliteWriteConnection.clock
    counts_pages = True
    node_bytes = "LENGTH(read_ids) + LENGTH(messages) + LENGTH(record) + LENGTH(note)"
    part_bytes = "LENGTH(ids) + LENGTH(text)"
    form_bytes = "LENGTH(forms.ids)"

    @classmethod
    def open(
        cls,
        folder: Path,
        model: str,
        *,
        replica: str = "",
        files: Callable[[bytes], SnapshotFiles] | None = None,
        full_sync: bool = False,
    ) -> SqliteStore:
        """Open a store, or create it; if no other process uses it, close its running turns.

        Args:
            folder: Where it is.
            model: Identifies the model, its S and W, and its chat template.
            replica: The name of this process among the processes on this host that use the store at
                the same time; "" if there are no others.
            files: Opens the place for the snapshots of the store with a given secret; None for the
                store's own folder.
            full_sync: Whether every commit also survives a power cut.

        Raises:
            StoreError: It cannot be used; the message says why.
        """
        lock = lock_folder(folder, shared=replica != "")
        try:
            check_folder(folder, is_shared=replica != "")
            connection = open_database(folder / "turns.sqlite", model, full_sync=full_sync)
            return cls(folder, connection, lock, replica, files)
        except BaseException:
            os.close(lock)
            raise

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        lock: int,
        replica: str,
        files: Callable[[bytes], SnapshotFiles] | None,
    ) -> None:
        super().__init__()
        self.replica = replica
        self._path = folder / "turns.sqlite"
        self._connection = connection
        self._lock = lock
        self._readers: list[sqlite3.Connection] = []  # that nothing uses
        self._is_closed = False
        writing = SqliteWriteConnection(connection, self._path)
        try:
            (self.secret,) = connection.execute(
                "SELECT value FROM meta WHERE key = 'secret'"
            ).fetchone()
            self.files = files(self.secret) if files else SnapshotFolder(folder / "snapshots")
            if replica == "":
                writing.begin()
                close_unfinished(writing)
                self._match_files(writing)
                writing.commit()
        except sqlite3.Error as error:
            connection.close()
            raise sqlite_error(self._path, error) from error
        except BaseException:
            connection.close()
            raise
        self._use(Writer(writing))

    def _match_files(self, connection: SqliteWriteConnection) -> None:
        """Delete files without a row, and rows without a file."""
        if not isinstance(self.files, SnapshotFolder):
            return
        rows = connection.execute("SELECT node, file FROM snapshots").fetchall()
        self.files.delete_others([file for _, file in rows])
        for node_id, file in rows:
            if not Path(self.files.path(file)).exists():
                connection.execute("DELETE FROM snapshots WHERE node = ?", [node_id])

    def close(self) -> None:
        """Write what is queued, and close the file. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        self.files.close()
        self._close_readers()
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        os.close(self._lock)

    def _close_readers(self) -> None:
        with suppress(IndexError):  # another thread may do the same
            while True:
                self._readers.pop().close()

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        if self._is_closed:
            raise closed_error()
        try:
            with self._reader() as reader:
                return reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise sqlite_error(self._path, error) from error

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        try:
            reader = self._readers.pop()  # threads come and go: there are as many as read at once
        except IndexError:
            reader = connect(self._path)
        try:
            yield reader
        finally:
            self._readers.append(reader)
            if self._is_closed:
                self._close_readers()

    def _transcript_bytes(self) -> int:
        pages, free, size = (
            self._rows(f"PRAGMA {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)
