"""What a store needs from a database: tables, statements in transactions, and a writing thread.

Jobs that wait together share a transaction. A caller that submits a job to a full queue waits:
turns then end later, but are never lost. Nothing here says which database it is.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from sinkstream.conversations.errors import SessionMoved, closed_error

logger = logging.getLogger("sinkstream")


VERSION = 6
"""The version of the tables. `migrations.py` brings earlier ones up to it."""

TABLES = {
    # Key "secret" makes hashes useless elsewhere; key "model" is what the store belongs to; key
    # "served" is the store's age, see `store_age.py`.
    "meta": "key TEXT PRIMARY KEY, value BLOB NOT NULL",
    # `used` is only shown. `tick` and `aged` say when a conversation was last used, in order and in
    # seconds of the store's age; `bytes` is what its turns take, see `deletion.py`. `is_single` is
    # 1 as long as it has one turn, which its client did not name. `sinks` is S; NULL stands for the
    # model's.
    "conversations": "id TEXT PRIMARY KEY, tenant TEXT NOT NULL, used REAL NOT NULL, "
    "title BLOB NOT NULL, tick INTEGER NOT NULL, aged REAL NOT NULL, bytes INTEGER NOT NULL, "
    "is_single INTEGER NOT NULL, sinks INTEGER",
    # Who may write a conversation; there is a row for each. `replica` is '' after it was given up.
    "owners": "session TEXT PRIMARY KEY, replica TEXT NOT NULL, epoch INTEGER NOT NULL",
    # Processes that use the store, and when each said so last, by the store's clock.
    "replicas": "name TEXT PRIMARY KEY, address TEXT NOT NULL, seen REAL NOT NULL",
    # `hash`, `last_id` and `finish_reason` are NULL while the turn is running; `tokens` then counts
    # up to the reply's beginning. Text of clients and of models is UTF-8: it may contain NUL.
    # `tick` is the order of turns; `created` is shown, and orders those of tick 0, which an earlier
    # version has written.
    "nodes": "id TEXT PRIMARY KEY, parent TEXT, conversation TEXT NOT NULL, tenant TEXT NOT NULL, "
    "session_key BLOB, hash BLOB, tokens INTEGER NOT NULL, last_id INTEGER, finish_reason TEXT, "
    "read_ids BLOB NOT NULL, messages TEXT NOT NULL, before BLOB NOT NULL, given BLOB NOT NULL, "
    "created REAL NOT NULL, record TEXT NOT NULL, note TEXT NOT NULL, "
    "is_after_settled INTEGER NOT NULL, is_settled INTEGER NOT NULL, "
    "tick INTEGER NOT NULL",
    # Settled forms of turns; see `node.py`. `base` is the id of a turn, or of another form.
    "forms": "id TEXT PRIMARY KEY, base TEXT, tokens INTEGER NOT NULL, ids BLOB NOT NULL",
    # A reply, in the pieces in which it was committed: int32 ids and their text.
    "parts": "node TEXT NOT NULL, number INTEGER NOT NULL, ids BLOB NOT NULL, text BLOB NOT NULL, "
    "PRIMARY KEY (node, number)",
    # A row exists only if its file is complete.
    "snapshots": "node TEXT PRIMARY KEY, conversation TEXT NOT NULL, bytes INTEGER NOT NULL, "
    "tick INTEGER NOT NULL, file TEXT NOT NULL",
    # Files that no row of `snapshots` names, and since which age of the store: new ones, which are
    # being written, and doomed ones, which are to be deleted.
    "loose_files": "file TEXT PRIMARY KEY, since REAL NOT NULL, is_doomed INTEGER NOT NULL",
    # Replies that a client was promised, until their turns are complete; see `promises.py`.
    "promises": "id TEXT PRIMARY KEY, tenant TEXT NOT NULL, replica TEXT NOT NULL, "
    "record TEXT NOT NULL, messages TEXT NOT NULL, created REAL NOT NULL, outcome TEXT NOT NULL, "
    "aged REAL NOT NULL, bytes INTEGER NOT NULL",
}
NEXT_TICK = "(SELECT COALESCE(MAX(tick), 0) + 1 FROM conversations)"
"""Of whatever is written now: later than all that this transaction sees, whatever clocks say.

A conversation has the largest tick of its turns. Turns of different conversations that begin at the
same moment in different processes may have the same one."""
SERVED = "served"
"""The key of the store's age in `meta`: a decimal number."""
MOST_ADDED_S = 60.0
"""The most that a process adds to the store's age at a time."""
GONE_S = 30.0
"""A replica that has not been seen for so long is gone."""
_AT_ONCE = 512  # ids in a statement
INDEXES = {
    "nodes_by_hash": "nodes (hash)",
    "nodes_by_parent": "nodes (parent)",
    "nodes_by_conversation": "nodes (conversation)",
    "conversations_by_tick": "conversations (tick)",
    "conversations_by_age": "conversations (aged)",
    "conversations_by_tenant": "conversations (tenant, tick)",
    "snapshots_by_conversation": "snapshots (conversation)",
    "promises_by_tenant": "promises (tenant)",
}


def columns_of(table: str) -> list[str]:
    """Return the names of a table's columns."""
    return [column.split()[0] for column in TABLES[table].split(", PRIMARY")[0].split(", ")]


def in_marks(
    values: Sequence[object], first: int = _AT_ONCE
) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield values in groups, each with the placeholders of an IN list.

    The first group has at most `first` values; the next ones are larger. The last value of a
    group is repeated until their number is a power of two. So there are few different statements: a
    connection keeps those that it has prepared.
    """
    begin, count = 0, first
    while some := values[begin : begin + count]:
        begin, count = begin + count, min(4 * count, _AT_ONCE)
        size = 1 << (len(some) - 1).bit_length()
        yield ",".join("?" * size), [*some, *[some[-1]] * (size - len(some))]


Result = TypeVar("Result")


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Return how many rows the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...


class Connection(Protocol):
    """What a job uses, inside a transaction."""

    clock: str
    """The database's time in seconds since 1970, as an expression."""
    age: str
    """The age of the store that something has which is used now, as an expression; see
    Note: [Ages]."""
    row_lock: str
    """Follows a SELECT whose rows must not change until the end of the transaction."""
    size: str
    """The bytes of a value, as an expression with a place for the column's name."""

    def execute(self, query: str, values: Sequence[Any] = ()) -> Cursor:
        """Run a statement."""
        ...


class Tables(Protocol):
    """The tables of an open store, for what keeps one of them. Any thread may call any method."""

    clock: str
    """As for `Connection`."""

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        ...

    def submit(self, job: Callable[[Connection], Result]) -> Future[Result]:
        """Queue a job for the writing thread."""
        ...

    def free(self, *files: str, cleans: bool = False) -> None:
        """Say in a job what it deletes; see `Store.free`."""
        ...


class WriteConnection(Connection, Protocol):
    """The connection of a store's one writing thread."""

    def begin(self) -> None:
        """Begin a transaction; connect again if the connection was lost."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def rollback(self) -> None:
        """Roll it back, if there is one."""
        ...

    def is_transient(self, error: Exception) -> bool:
        """Return whether the same transaction may succeed if it is retried."""
        ...

    def shown(self, error: Exception) -> Exception:
        """Return the error to raise for one from the database."""
        ...

    def clean(self) -> bool:
        """Leave no copy of deleted text; return whether that is done."""
        ...


Job = Callable[[Connection], Result]
"""Part of a transaction. It may be run again after a commit whose outcome is not known, so a second
run must change nothing."""


_MAX_WAITING = 1000
_MAX_TOGETHER = 64  # jobs in a transaction
RETRY_S = 10.0
"""How long a transaction is tried again while the database cannot be reached."""
_PAUSE_S = 0.05


def _keep(file: str) -> None:
    pass


class Writer:
    """Owns the connection that writes. Any thread may call its methods."""

    def __init__(self, connection: WriteConnection) -> None:
        self._connection = connection
        self._jobs: queue.Queue[tuple[Job[Any], Future[Any]] | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()  # nothing is queued after the end
        self._closed = False
        self.must_clean = False
        """Set by a job that deletes text: afterwards no copy of it may be left."""
        self.freed: list[str] = []
        """Jobs add the files whose rows they delete: after the commit, `on_freed` gets each."""
        self.on_freed: Callable[[str], None] = _keep
        self._thread = threading.Thread(target=self._run, name="sinkstream-store", daemon=True)
        self._thread.start()

    def submit(self, job: Job[Result]) -> Future[Result]:
        """Queue a job; wait only while the queue is full.

        Raises:
            StoreError: The store is closed.
        """
        done: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise closed_error()
            self._jobs.put((job, done))
        return done

    def try_submit(self, job: Job[Result]) -> Future[Result] | None:
        """Queue a job if there is room; return None if there is not. Never waits."""
        if not self._lock.acquire(blocking=False):
            return None  # another thread is waiting for room
        done: Future[Result] = Future()
        try:
            if self._closed or self._jobs.full():
                return None
            self._jobs.put_nowait((job, done))
        finally:
            self._lock.release()
        return done

    def close(self) -> None:
        """Do all jobs that are queued, and end the thread. May be called more than once."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch = [first]
            is_last = False
            while len(batch) < _MAX_TOGETHER and not is_last:
                try:
                    following = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    is_last = True
                else:
                    batch.append(following)
            self._write(batch)
            if self.must_clean:
                self.must_clean = not self._connection.clean()
            if is_last:
                return

    def _write(self, batch: list[tuple[Job[Any], Future[Any]]]) -> None:
        if self._try(batch) is None:
            return
        until = time.monotonic() + RETRY_S
        for job, done in batch:  # each by itself: one that fails takes no other along
            while (error := self._try([(job, done)])) is not None:
                if self._connection.is_transient(error) and time.monotonic() < until:
                    time.sleep(_PAUSE_S)
                    continue
                shown = self._connection.shown(error)
                if not isinstance(error, SessionMoved):
                    logger.error("store: a write failed: %s", shown)
                done.set_exception(shown)
                break

    def _try(self, batch: list[tuple[Job[Any], Future[Any]]]) -> Exception | None:
        """Commit jobs together; return the error if that fails."""
        self.freed.clear()
        try:
            self._connection.begin()
            results = [job(self._connection) for job, _ in batch]
            self._connection.commit()
        except Exception as error:
            with suppress(Exception):  # the next transaction tries again
                self._connection.rollback()
            return error
        for file in self.freed:
            self.on_freed(file)
        for (_, done), result in zip(batch, results, strict=True):
            done.set_result(result)
        return None
