"""How old a store is: the seconds for which servers have used it. Ages are measured in them.

No clock that can be set is read: one that jumps a month ahead makes nothing old, and a server that
was switched off finds everything as it was. Each process adds the time between two of its sweeps.
Several processes that share a store add the same time: each raises the store's age to what it was
when that process last looked, plus the time since then.
"""

from __future__ import annotations

import time

from sinkstream.conversations.database import MOST_ADDED_S, SERVED, Connection, Tables

# Note: [Ages]
# Something that is used now gets the store's age plus MOST_ADDED_S. Later, it is not judged older
# than it is: each process first adds at most MOST_ADDED_S to an age that is not above the present
# one, and from then on no more than the time that passes.


class StoreAge:
    """Adds the time for which this process uses a store. Belongs to one thread."""

    def __init__(self, store: Tables) -> None:
        """Begin to count; the store is open."""
        self._store = store
        ((value,),) = store.rows("SELECT value FROM meta WHERE key = ?", [SERVED])
        self._seen, self._seen_at = _seconds(value), time.monotonic()

    def advance(self) -> float:
        """Add the time since the last call, and return the store's age. Blocks briefly.

        Of a longer time, MOST_ADDED_S is added: while this process was stopped, another may have
        begun, for which that time has not passed.

        Raises:
            StoreError: The store cannot be read or written.
        """
        now = time.monotonic()
        least = self._seen + min(now - self._seen_at, MOST_ADDED_S)

        def job(connection: Connection) -> float:
            query = f"SELECT value FROM meta WHERE key = ?{connection.row_lock}"
            (value,) = connection.execute(query, [SERVED]).fetchone()
            age = max(_seconds(value), least)
            connection.execute(
                "UPDATE meta SET value = ? WHERE key = ?", (repr(age).encode(), SERVED)
            )
            return age

        self._seen, self._seen_at = self._store.submit(job).result(), now
        return self._seen


def _seconds(value: bytes) -> float:
    return float(bytes(value))
