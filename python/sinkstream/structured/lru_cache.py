"""A cache of the values that were used most recently."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Keeps the values of the most recently used keys. Any thread may call it."""

    def __init__(self, most: int) -> None:
        """Keep `most` values."""
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: _K) -> bool:
        return key in self._values

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Return the value of a key, making it now if there is none.

        Two threads may make one at the same time. An error in `make` is raised and not kept.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
