"""The one thread that writes to the database: takes jobs from a bounded queue, in order.

Jobs that wait together share a transaction. A caller that gives a job to a full queue waits: turns
end later then, but are never lost.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from sinkstream.server.conversations.store_error import StoreError, store_error

logger = logging.getLogger("sinkstream")

Job = Callable[[sqlite3.Connection], None]

_MAX_WAITING = 1000
_MAX_TOGETHER = 64  # jobs in a transaction


class Writer:
    """Owns the connection that writes. Any thread may call its methods."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._jobs: queue.Queue[tuple[Job, Future[None]] | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()  # nothing is queued after the end
        self._closed = False
        self.must_truncate = False
        """Set by a job that deletes text: afterwards no copy may be left in the write-ahead log."""
        self._thread = threading.Thread(target=self._run, name="sinkstream-store", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[None]:
        """Queue a job; wait only while the queue is full.

        Raises:
            StoreError: The store is closed.
        """
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise StoreError("store: the store is closed.")
            self._jobs.put((job, done))
        return done

    def try_submit(self, job: Job) -> bool:
        """Queue a job if there is room; return whether there was. Never waits."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread is waiting for room
        try:
            if self._closed or self._jobs.full():
                return False
            self._jobs.put_nowait((job, Future()))
        finally:
            self._lock.release()
        return True

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
            if not self._commit([job for job, _ in batch], [done for _, done in batch]):
                for job, done in batch:  # each by itself: one that fails takes no other along
                    self._commit([job], [done], is_final=True)
            if self.must_truncate:
                self._truncate()
            if is_last:
                return

    def _truncate(self) -> None:
        with suppress(sqlite3.Error):  # tried again after the next transaction
            is_busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self.must_truncate = bool(is_busy)

    def _commit(
        self, jobs: list[Job], dones: list[Future[None]], *, is_final: bool = False
    ) -> bool:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job(self._connection)
            self._connection.execute("COMMIT")
        except Exception as error:
            with suppress(sqlite3.Error):  # the next transaction tries again
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            if not is_final:
                return False
            shown = store_error(self._path, error) if isinstance(error, sqlite3.Error) else error
            logger.error("store: a write failed: %s", shown)
            dones[0].set_exception(shown)
            return True
        for done in dones:
            done.set_result(None)
        return True
