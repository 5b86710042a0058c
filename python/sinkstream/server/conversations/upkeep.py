"""What happens between turns: snapshots, parking, and deletion by age and size."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sinkstream.errors import SinkstreamError
from sinkstream.server.conversations.residency import Resident
from sinkstream.server.conversations.settings import Settings
from sinkstream.server.conversations.sqlite_store import SqliteStore
from sinkstream.server.conversations.states import States

logger = logging.getLogger("sinkstream")


class Upkeep:
    """A thread that looks after idle sessions and the store's size."""

    def __init__(
        self,
        states: States,
        store: SqliteStore,
        settings: Settings,
        *,
        snapshot_tokens: int,
        delete: Callable[[str], bool],
    ) -> None:
        """Look every `settings.upkeep_s`.

        Args:
            states: The sessions in memory.
            store: The store.
            settings: The limits.
            snapshot_tokens: How much a conversation may grow without a snapshot.
            delete: Deletes a conversation unless it is running; returns whether it did.
        """
        self._states = states
        self._store = store
        self._settings = settings
        self._snapshot_tokens = snapshot_tokens
        self._delete = delete
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sinkstream-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after what it is doing."""
        self._is_ending.set()
        self._thread.join()

    def run(self) -> None:
        """Do all that is due."""
        residency = self._states.residency
        for resident in residency.all():
            if self._states.unsaved(resident) >= self._snapshot_tokens:
                self._with(resident, self._states.save)
        oldest = time.monotonic() - self._settings.park_s
        for resident in residency.all():
            if resident.used <= oldest and residency.keep(resident):
                residency.park(resident)
        self._expire()
        self._shrink()

    def _with(self, resident: Resident, work: Callable[[Resident], None]) -> None:
        if not self._states.residency.keep(resident):
            return
        try:
            if self._states.unsaved(resident) > 0:
                work(resident)
        finally:
            self._states.residency.release(resident)

    def _expire(self) -> None:
        settings = self._settings
        expired: list[str] = []
        if settings.ttl_s is not None:
            expired += self._store.oldest_conversations(time.time() - settings.ttl_s)
        if settings.max_conversations is not None:
            expired += self._store.surplus_conversations(settings.max_conversations)
        for conversation in dict.fromkeys(expired):
            self._delete(conversation)

    def _shrink(self) -> None:
        most = self._settings.max_bytes
        if most is None:
            return
        usage = self._store.usage()
        over = usage.transcripts + usage.snapshots - most
        if over <= 0:
            return
        for node_id, size in self._store.oldest_snapshots():
            self._states.drop_snapshot(node_id)
            over -= size
            if over <= 0:
                return
        for conversation in self._store.oldest_conversations(time.time()):
            before = self._store.usage().transcripts
            self._delete(conversation)
            over -= before - self._store.usage().transcripts
            if over <= 0:
                return

    def _loop(self) -> None:
        while not self._is_ending.wait(self._settings.upkeep_s):
            try:
                self.run()
            except (OSError, SinkstreamError) as error:
                logger.warning("store: upkeep failed and will be repeated: %s", error)
