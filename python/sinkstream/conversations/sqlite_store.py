"""A store in one SQLite file, and the snapshots of sessions next to it.

    STORE/            0700, if it is created here
      lock            held by the process that uses the store, or by several that share it
      turns.sqlite    0600, and its WAL
      snapshots/ab/resp_ab….XXXXXXXX.session

Each read uses a connection that no other thread is using.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sinkstream.conversations.database import (
    INDEXES,
    MOST_ADDED_S,
    SERVED,
    TABLES,
    VERSION,
    Writer,
    columns_of,
)
from sinkstream.conversations.deletion import close_unfinished
from sinkstream.conversations.errors import (
    StoreError,
    closed_error,
    folder_error,
    full_error,
    other_columns,
    other_model,
    other_version,
    used_by_others,
    wrongly_written,
)
from sinkstream.conversations.file_systems import check_folder, check_owner, open_own
from sinkstream.conversations.migrations import OLDEST, Migration, migrate
from sinkstream.conversations.snapshot_files import SnapshotFiles, SnapshotFolder
from sinkstream.conversations.store import Store

logger = logging.getLogger("sinkstream")

_BUSY_S = 10.0
_CACHE_KIB = 256


def lock_folder(folder: Path, *, shared: bool = False) -> int:
    """Lock a store's folder, and return the lock's descriptor.

    A folder that is missing is created, private to its owner. One that exists stays as it is.

    Args:
        folder: Where the store is.
        shared: Whether other processes that also share it may use it at the same time.

    Raises:
        StoreError: It cannot be written, it could be changed by another user, or another process is
            using it.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        check_owner(folder)
        lock = open_own(folder / "lock")
    except OSError as error:
        raise folder_error(folder, error) from error
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"store: {folder} must be used by one server at a time, but another process is using "
            "it. Give this server another `store`, or give each server its own `replica`."
        ) from None
    return lock


@contextmanager
def _alone(lock: int, *, is_shared: bool) -> Iterator[bool]:
    """Give a block in which this process has the lock of a folder for itself, if it can."""
    if not is_shared:
        yield True
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def connect(path: Path, *, full_sync: bool = False) -> sqlite3.Connection:
    """Open a connection with manual transactions.

    Args:
        path: The database.
        full_sync: Whether a commit also survives a power cut; every commit survives the process.
    """
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
    connection.execute("PRAGMA secure_delete=ON")
    # A connection's cache would grow to 2 MB with the file. The operating system caches the file
    # once for all connections.
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    return connection


def open_database(
    path: Path, model: str, *, full_sync: bool, alone: Callable[[], AbstractContextManager[bool]]
) -> sqlite3.Connection:
    """Open the database for writing, up to date; create it if there is none.

    Args:
        path: The file.
        model: Identifies the model, its S and W, and its chat template.
        full_sync: As for `connect`.
        alone: Gives a block with whether no other process can use the database in it.

    Raises:
        StoreError: It is not a store, is damaged, read-only or full, belongs to a different model,
            or cannot be migrated.
    """
    try:
        os.close(open_own(path))
        connection = connect(path, full_sync=full_sync)
    except OSError as error:
        raise folder_error(path, error) from error
    except sqlite3.Error as error:
        raise sqlite_error(path, error) from error
    try:
        _prepare(connection, path, model, alone)
    except sqlite3.Error as error:
        connection.close()
        raise sqlite_error(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(
    connection: sqlite3.Connection,
    path: Path,
    model: str,
    alone: Callable[[], AbstractContextManager[bool]],
) -> None:
    if not _is_empty(connection):
        _check_version(connection, path)
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a new file only
    _use_log(connection)
    # From here on, another process that does the same waits, and then finds the tables.
    connection.execute("BEGIN IMMEDIATE")
    if _is_empty(connection):
        _create(connection, model)
        return
    version = _check_version(connection, path)
    found_model = connection.execute("SELECT value FROM meta WHERE key = 'model'").fetchone()
    if found_model is None or found_model[0] != model:
        raise other_model(str(path), model, found_model and found_model[0])
    if version != VERSION:
        with alone() as is_alone:
            if not is_alone:
                raise used_by_others(str(path), version, VERSION)
            migrate(Migration(SqliteWriteConnection(connection, path), str, False), version)
            connection.execute(f"PRAGMA user_version={VERSION}")
            connection.execute("COMMIT")
        logger.info("store: %s was migrated from version %d to %d", path, version, VERSION)
        connection.execute("BEGIN IMMEDIATE")
    for table in TABLES:
        expected = columns_of(table)
        found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if found != expected:
            raise other_columns(str(path), table, expected, found)
    # Says now, not after a reply, if it is read-only.
    connection.execute("UPDATE meta SET value = value WHERE key = 'model'")
    connection.execute("COMMIT")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None


def _check_version(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if not OLDEST <= version <= VERSION:
        raise other_version(str(path), version, OLDEST, VERSION)
    return version


def _use_log(connection: sqlite3.Connection) -> None:
    """Use a write-ahead log. SQLite does not wait for a process that is doing the same."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _create(connection: sqlite3.Connection, model: str) -> None:
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
    for index, columns in INDEXES.items():
        connection.execute(f"CREATE INDEX {index} ON {columns}")
    values = [("secret", secrets.token_bytes(32)), ("model", model), (SERVED, b"0")]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")


def outline_facts(folder: Path) -> tuple[str, int, float] | None:
    """Return what a folder's store belongs to, its number of conversations, and its last write.

    None if there is no store that can be read. Nothing is locked or changed, whatever its version.
    """
    path = folder / "turns.sqlite"
    try:
        logs = [file for file in folder.glob("turns.sqlite*") if file.suffix != ".sqlite-shm"]
        written = [found for file in logs if (found := file.stat()).st_size]
        reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
    except (OSError, sqlite3.Error):
        return None
    try:
        (model,) = reader.execute("SELECT value FROM meta WHERE key = 'model'").fetchone()
        (count,) = reader.execute("SELECT COUNT(*) FROM conversations").fetchone()
    except (sqlite3.Error, TypeError):
        return None
    finally:
        reader.close()
    # A reader may leave an empty log, which says nothing.
    return str(model), count, max(found.st_mtime for found in written)


class SqliteWriteConnection:
    """Implements `WriteConnection`. SQLite lets one transaction write at a time."""

    clock = "((julianday('now') - 2440587.5) * 86400.0)"
    age = (
        f"(SELECT CAST(CAST(value AS TEXT) AS REAL) + {MOST_ADDED_S} FROM meta "
        f"WHERE key = '{SERVED}')"
    )
    row_lock = ""
    size = "LENGTH(CAST({} AS BLOB))"

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def execute(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run a statement."""
        return self._connection.execute(query, values)

    def begin(self) -> None:
        """Begin to write; wait for other processes that are writing."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit."""
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Roll the transaction back, if there is one."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def is_transient(self, error: Exception) -> bool:
        """Return False: SQLite itself has already waited."""
        return False

    def shown(self, error: Exception) -> Exception:
        """Return the error to raise."""
        return sqlite_error(self._path, error) if isinstance(error, sqlite3.Error) else error

    def clean(self) -> bool:
        """Release free pages, and empty the write-ahead log; return whether that was possible."""
        with suppress(sqlite3.Error):  # tried again after the next transaction
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
            is_busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not is_busy
        return False


def sqlite_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the error to raise for one from SQLite."""
    reason = str(error)
    if "readonly" in reason or "unable to open" in reason:
        return StoreError(f"store: {path} must be writable, but is not ({reason}).")
    if "full" in reason:
        return full_error(str(path))
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
        return wrongly_written(str(path), reason)
    if isinstance(error, sqlite3.OperationalError):
        return StoreError(f"store: {path} cannot be used: {reason}.")
    return StoreError(
        f"store: {path} must be a sinkstream store, but SQLite reports: {reason}. If you move it "
        "away, the server creates a new one."
    )


class SqliteStore(Store):
    """An open store. Created by `SqliteStore.open`."""

    clock = SqliteWriteConnection.clock
    age = SqliteWriteConnection.age
    counts_pages = True

    @classmethod
    def open(
        cls,
        folder: Path,
        model: str,
        *,
        is_shared: bool = False,
        files: Callable[[bytes], SnapshotFiles] | None = None,
        full_sync: bool = False,
    ) -> SqliteStore:
        """Open a store, or create it; if no other process uses it, close its running turns.

        Args:
            folder: Where it is.
            model: Identifies the model, its S and W, and its chat template.
            is_shared: Whether other processes on this host may use it at the same time.
            files: Opens the place for the snapshots of the store with a given secret; None for the
                store's own folder.
            full_sync: Whether every commit also survives a power cut.

        Raises:
            StoreError: It cannot be used; the message says why.
        """
        lock = lock_folder(folder, shared=is_shared)
        try:
            check_folder(folder, is_shared=is_shared)
            connection = open_database(
                folder / "turns.sqlite",
                model,
                full_sync=full_sync,
                alone=partial(_alone, lock, is_shared=is_shared),
            )
            return cls(folder, connection, lock, is_shared, files)
        except BaseException:
            os.close(lock)
            raise

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        lock: int,
        is_shared: bool,
        files: Callable[[bytes], SnapshotFiles] | None,
    ) -> None:
        self._path = folder / "turns.sqlite"
        self.name = str(self._path)
        self._file = self._found_file()
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
            if not is_shared:
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
        self.write_with(Writer(writing))

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
        self.end_writing()
        self._close_readers()
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        os.close(self._lock)

    def _close_readers(self) -> None:
        with suppress(IndexError):  # another thread may do the same
            while True:
                self._readers.pop().close()

    def _found_file(self) -> tuple[int, int] | None:
        """Return the device and the number of the database's file; None if there is none."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _is_there(self) -> bool:
        return self._found_file() == self._file

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
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
            self.rows(f"PRAGMA {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)
