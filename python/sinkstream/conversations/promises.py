"""Replies that clients were promised: each is found from then on, whatever becomes of its server.

A promise is written before the client hears of it, and removed in the transaction that completes
the reply's turn. If there is no turn, it says how the reply ended. One whose process has died is
broken: the reply is not begun again, since it may be what the process died of.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sinkstream.conversations.database import GONE_S, Connection, Tables
from sinkstream.conversations.deletion import TURN_BYTES, remove_promise

BROKEN = "broken"
"""The outcome of a promise whose process has died."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A reply that a client waits for."""

    id: str
    """The id that its turn has, or will have."""
    tenant: str
    record: str
    """The request's record, as in `NewNode`."""
    messages: str
    """The request's own messages, as JSON."""
    outcome: str = ""
    """How it ended without a turn, in the caller's words, or `BROKEN`; "" if it has not ended."""
    is_running: bool = False
    """Whether its turn has begun."""


class Promises:
    """The promises of one process. Any thread may call any method; all block briefly."""

    def __init__(self, store: Tables, replica: str) -> None:
        """Break those that an earlier process of the same name has left."""
        self._store = store
        self._replica = replica
        store.submit(
            lambda connection: connection.execute(
                "UPDATE promises SET outcome = ? WHERE outcome = '' AND replica = ?",
                (BROKEN, replica),
            )
        ).result()

    def make(self, promise: Promise) -> None:
        """Write a promise.

        Raises:
            StoreError: It cannot be written: the client must hear of an error.
        """
        size = TURN_BYTES + len(promise.record.encode()) + len(promise.messages.encode())

        def job(connection: Connection) -> None:
            connection.execute(
                f"INSERT INTO promises VALUES (?, ?, ?, ?, ?, ?, '', {connection.age}, ?) "
                "ON CONFLICT DO NOTHING",
                (
                    promise.id, promise.tenant, self._replica, promise.record, promise.messages,
                    time.time(), size,
                ),
            )  # fmt: skip

        self._store.submit(job).result()

    def find(self, tenant: str, name: str) -> Promise | None:
        """Return a tenant's promise; None if there is none, or if its turn is complete."""
        rows = self._store.rows(
            "SELECT promises.id, promises.tenant, promises.record, promises.messages, outcome, "
            "nodes.id IS NOT NULL FROM promises LEFT JOIN nodes ON nodes.id = promises.id "
            "WHERE promises.id = ? AND promises.tenant = ?",
            [name, tenant],
        )
        if not rows:
            return None
        found, of_tenant, record, messages, outcome, is_running = rows[0]
        return Promise(found, of_tenant, record, messages, outcome, bool(is_running))

    def end(self, name: str, outcome: str) -> None:
        """Note how a reply ended that left no turn.

        Raises:
            StoreError: It cannot be written.
        """
        self._store.submit(
            lambda connection: connection.execute(
                "UPDATE promises SET outcome = ? WHERE id = ?", (outcome, name)
            )
        ).result()

    def remove(self, name: str) -> None:
        """Remove a promise: it was never made, or its response is deleted.

        Raises:
            StoreError: It cannot be written.
        """

        def job(connection: Connection) -> None:
            remove_promise(connection, name)
            self._store.free(cleans=True)

        self._store.submit(job).result()

    def break_gone(self) -> None:
        """Break the promises of replicas that are gone.

        Raises:
            StoreError: It cannot be written.
        """
        self._store.submit(
            lambda connection: connection.execute(
                "UPDATE promises SET outcome = ? WHERE outcome = '' AND replica <> ? AND replica "
                f"NOT IN (SELECT name FROM replicas WHERE seen > {self._store.clock} - ?)",
                (BROKEN, self._replica, GONE_S),
            )
        ).result()

    def remove_old(self, aged_before: float) -> None:
        """Remove the promises that ended before an age of the store.

        Raises:
            StoreError: It cannot be written.
        """
        self._store.submit(
            lambda connection: connection.execute(
                "DELETE FROM promises WHERE outcome <> '' AND aged < ?", [aged_before]
            )
        ).result()

    def ended(self, tenant: str) -> list[tuple[str, int]]:
        """Return a tenant's promises that have ended, and their bytes, oldest first."""
        query = "SELECT id, bytes FROM promises WHERE tenant = ? AND outcome <> '' ORDER BY aged"
        return [(name, int(size)) for name, size in self._store.rows(query, [tenant])]
