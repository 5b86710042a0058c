"""A lock for each of many names."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sinkstream.conversations.turns import Waiting


class KeyedLock:
    """Lets one thread at a time do what has a name. Names that are not in use take no memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def of(self, name: str, waiting: Waiting, until: float | None = None) -> Iterator[None]:
        """Hold the lock of a name. Wait for it, if another thread has it, in `waiting()`.

        Raises:
            TimeoutError: It is not free at the time `until`, by `time.monotonic`.
        """
        if not self._try_take(name):
            left = None if until is None else until - time.monotonic()
            with waiting(), self._changed:
                if not self._changed.wait_for(lambda: name not in self._held, left):
                    raise TimeoutError
                self._held.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(name)
                self._changed.notify_all()

    def _try_take(self, name: str) -> bool:
        with self._changed:
            is_free = name not in self._held
            self._held.add(name)
            return is_free
