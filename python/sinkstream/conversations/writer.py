"""The one thread that writes to the database: takes jobs from a bounded queue, in order.

Jobs that wait together share a transaction. A caller that submits a job to a full queue waits:
turns then end later, but are never lost.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from sinkstream.conversations.claim import SessionMoved
from sinkstream.conversations.connection import Job, Result, WriteConnection
from sinkstream.conversations.store_error import closed_error

logger = logging.getLogger("sinkstream")

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
