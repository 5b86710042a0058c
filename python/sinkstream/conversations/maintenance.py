"""What happens between turns: snapshots that failed, parking, and deletion by age and size.

Conversations that this process may not write are not touched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import SessionMoved
from sinkstream.conversations.fence import Fence
from sinkstream.conversations.opening import Settings
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.restore import StateRestorer
from sinkstream.conversations.store import Store
from sinkstream.errors import SinkstreamError

logger = logging.getLogger("sinkstream")

_USAGE_PAUSE = 100.0
"""Adding up the sizes of all turns may take a hundredth of the time."""


class _Failures:
    """The failures in a run, which continues with the rest."""

    def __init__(self) -> None:
        self._first: Exception | None = None
        self._count = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error in the block, unless another process has taken the conversation."""
        try:
            yield
        except SessionMoved:
            pass
        except (OSError, SinkstreamError) as error:
            self._first = self._first or error
            self._count += 1

    def log(self) -> None:
        """Log once that something has failed."""
        if self._first is not None:
            logger.warning(
                "store: upkeep failed in %d %s and will be retried there; the first error: %s",
                self._count,
                "place" if self._count == 1 else "places",
                self._first,
            )


class Maintenance:
    """A thread that looks after idle sessions and the store's size."""

    def __init__(
        self,
        restorer: StateRestorer,
        store: Store,
        fence: Fence,
        settings: Settings,
        *,
        delete: Callable[[ConversationWriter, float], bool],
    ) -> None:
        """Run every `settings.maintenance_s` seconds.

        Args:
            restorer: The sessions in memory.
            store: The store.
            fence: What this process may write.
            settings: The limits.
            delete: Deletes a conversation that has not been used since a time, unless it is
                running; returns whether it did.
        """
        self._restorer = restorer
        self._store = store
        self._fence = fence
        self._settings = settings
        self._delete = delete
        self._is_ending = threading.Event()
        self._usage_due = float("-inf")
        self._thread = threading.Thread(target=self._loop, name="sinkstream-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after what it is doing."""
        self._is_ending.set()
        self._thread.join()

    def run(self) -> None:
        """Do everything that is due. A failure does not prevent the rest."""
        failures = _Failures()
        self._fence.look_after(failures.noted)
        with failures.noted():
            self._store.delete_loose_files()
        residency, snapshots = self._restorer.residency, self._restorer.snapshots
        for resident in residency.all():
            with failures.noted():  # those that could not be written at once
                if snapshots.is_due(resident):
                    self._with(resident, snapshots.save)
        oldest = time.monotonic() - self._settings.park_s
        for resident in residency.all():
            with failures.noted():
                is_due = resident.used <= oldest or self._is_foreign(resident)
                if is_due and residency.keep(resident):
                    residency.park(resident)
        with failures.noted():
            self._expire(failures)
        with failures.noted():
            self._shrink(failures)
        failures.log()

    def _is_foreign(self, resident: Resident) -> bool:
        """Return whether the conversation has continued in another process."""
        node = resident.node
        if node is None or not resident.is_stored:
            return False
        return self._fence.held(node.conversation) is None

    def _with(self, resident: Resident, work: Callable[[Resident], None]) -> None:
        if not self._restorer.residency.keep(resident):
            return
        try:
            if self._restorer.snapshots.unsaved(resident) > 0:
                work(resident)
        finally:
            self._restorer.residency.release(resident)

    def _expire(self, failures: _Failures) -> None:
        settings = self._settings
        expired: list[tuple[str, float]] = []
        if settings.ttl_s is not None:
            expired += self._store.oldest_conversations(time.time() - settings.ttl_s)
        if settings.max_conversations is not None:
            expired += self._store.surplus_conversations(settings.max_conversations)
        for conversation, used in dict.fromkeys(expired):
            with failures.noted():
                self._delete_own(conversation, used)

    def _delete_own(self, conversation: str, used: float) -> bool:
        """Delete a conversation unless another process owns it; return whether it was deleted."""
        writer = self._fence.adopt(conversation)
        return writer is not None and self._delete(writer, used)

    def _shrink(self, failures: _Failures) -> None:
        most, began = self._settings.max_bytes, time.monotonic()
        if most is None or began < self._usage_due:
            return
        usage = self._store.usage()
        if not self._store.counts_pages:
            self._usage_due = began + (time.monotonic() - began) * _USAGE_PAUSE
        over = usage.transcripts + usage.snapshots - most
        if over <= 0:
            return
        # Every process goes through the same lists; what others own, they delete.
        for node_id, size in self._store.oldest_snapshots():
            with failures.noted():
                node = self._store.state(node_id)
                if node is not None and self._fence.adopt(node.conversation) is not None:
                    self._restorer.snapshots.drop_snapshot(node_id)
                over -= size
            if over <= 0:
                return
        for conversation, used in self._store.oldest_conversations(time.time()):
            with failures.noted():
                over -= self._delete_sized(conversation, used)
            if over <= 0:
                return

    def _delete_sized(self, conversation: str, used: float) -> int:
        """Delete a conversation, or leave it to its owner; return how many bytes it takes."""
        size = self._store.size_of(conversation)
        if not self._store.counts_pages:
            self._delete_own(conversation, used)
            return size
        before = self._store.usage().transcripts
        if not self._delete_own(conversation, used):
            return size
        return before - self._store.usage().transcripts

    def _loop(self) -> None:
        while not self._is_ending.wait(self._settings.maintenance_s):
            self.run()
