"""Says that this replica is alive, even while upkeep writes snapshots for minutes."""

from __future__ import annotations

import logging
import threading

from sinkstream.conversations.store import Store
from sinkstream.errors import SinkstreamError

logger = logging.getLogger("sinkstream")

_BEAT_S = 5.0  # a replica that is not seen for 30 s is gone


class Heartbeat:
    """A thread that announces a replica."""

    def __init__(self, store: Store, address: str) -> None:
        """Announce the replica of a store until `close`; without replicas, do nothing."""
        self._store = store
        self._address = address
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        if store.replica:
            self._thread = threading.Thread(
                target=self._loop, name="sinkstream-heartbeat", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """End the thread: afterwards, nothing is announced. May be called more than once."""
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._is_ending.wait(_BEAT_S):
            try:
                self._store.announce(self._address)
            except (OSError, SinkstreamError) as error:
                logger.warning("store: this replica could not report that it is alive: %s", error)
