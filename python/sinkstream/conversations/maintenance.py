"""What happens between turns: snapshots that failed, parking, and deletion by age and size.

Conversations that this process may not write are not touched. Beyond the store's largest size, the
tenant that takes most pays first: its oldest snapshots, then its oldest conversations.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import SessionMoved
from sinkstream.conversations.fence import Fence
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.restore import StateRestorer
from sinkstream.conversations.store import Store
from sinkstream.conversations.store_age import StoreAge
from sinkstream.errors import SinkstreamError

logger = logging.getLogger("sinkstream")

_USAGE_PAUSE = 100.0
"""Adding up sizes may take a hundredth of the time."""


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
        delete: Callable[[ConversationWriter, int], bool],
    ) -> None:
        """Run every `settings.maintenance_s` seconds.

        Args:
            restorer: The sessions in memory.
            store: The store.
            fence: What this process may write.
            settings: The limits.
            delete: Deletes a conversation that has not been used since a tick, unless it is
                running; returns whether it did.
        """
        self._restorer = restorer
        self._store = store
        self._fence = fence
        self._settings = settings
        self._delete = delete
        self._age = StoreAge(store)
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
        with failures.noted():
            if not self._store.look():
                return
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
        settings, store = self._settings, self._store
        age = self._age.advance()
        expired: list[tuple[str, int]] = []
        least = float("-inf") if settings.ttl_s is None else age - settings.ttl_s
        with failures.noted():
            self._fence.promises.remove_old(least)
        if settings.ttl_s is not None:
            expired += store.expired_conversations(least)
        if settings.single_ttl_s is not None:
            single = age - settings.single_ttl_s
            expired += store.expired_conversations(single, is_single=True)
        if settings.max_conversations is not None:
            expired += store.surplus_conversations(settings.max_conversations)
        for conversation, tick in dict.fromkeys(expired):
            with failures.noted():
                self._delete_own(conversation, tick)

    def _delete_own(self, conversation: str, tick: int) -> bool:
        """Delete a conversation unless another process owns it; return whether it was deleted."""
        writer = self._fence.adopt(conversation)
        return writer is not None and self._delete(writer, tick)

    def _shrink(self, failures: _Failures) -> None:
        most, began = self._settings.max_bytes, time.monotonic()
        if most is None or began < self._usage_due:
            return
        usage = self._store.usage()
        self._usage_due = began + (time.monotonic() - began) * _USAGE_PAUSE
        over = usage.transcripts + usage.snapshots - most
        if over <= 0:
            return
        # Every process goes through the same lists; what others own, they delete.
        shares = self._store.shares()
        largest = [(-size, tenant) for tenant, size in shares.items()]
        heapq.heapify(largest)
        paying = {tenant: self._deletions(tenant, failures) for tenant in shares}
        while over > 0 and largest:
            size, tenant = heapq.heappop(largest)
            if (deleted := next(paying[tenant], None)) is not None:
                share, freed = deleted
                over -= freed
                heapq.heappush(largest, (size + share, tenant))

    def _deletions(self, tenant: str, failures: _Failures) -> Iterator[tuple[int, int]]:
        """Delete what a tenant has, one by one; yield each one's part of its share, and of `usage`.

        What belongs to another process counts as deleted.
        """
        for node_id, size in self._store.oldest_snapshots(tenant):
            with failures.noted():
                node = self._store.state(node_id)
                if node is not None and self._fence.adopt(node.conversation) is not None:
                    self._restorer.snapshots.drop_snapshot(node_id)
            yield size, size
        for conversation, tick, size in self._store.conversations_by_use(tenant):
            freed = 0
            with failures.noted():
                freed = self._delete_sized(conversation, tick, size)
            yield size, freed
        promises = self._fence.promises
        for name, size in promises.ended(tenant):
            with failures.noted():
                promises.remove(name)
            yield size, size

    def _delete_sized(self, conversation: str, tick: int, size: int) -> int:
        """Delete a conversation, or leave it to its owner; return how many bytes that frees."""
        before = self._store.usage().transcripts if self._store.counts_pages else 0
        is_deleted = self._delete_own(conversation, tick)
        if is_deleted and self._store.counts_pages:
            return before - self._store.usage().transcripts
        return size

    def _loop(self) -> None:
        while not self._is_ending.wait(self._settings.maintenance_s):
            self.run()
