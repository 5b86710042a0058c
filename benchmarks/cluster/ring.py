"""Consistent hashing: a replica more or less moves few sessions."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=1 << 16)
def point_of(name: str) -> int:
    """Return where a name lies on the ring."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


class Ring:
    """Each node owns the arcs that end at its points."""

    def __init__(self, points: int = 100) -> None:
        """Give each node `points` points."""
        self._per_node = points
        self._points: list[tuple[int, str]] = []
        self._nodes: set[str] = set()

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node: str) -> None:
        """Add a node."""
        self._nodes.add(node)
        own = range(self._per_node)
        self._points += [(point_of(f"{node}#{number}"), node) for number in own]
        self._points.sort()

    def remove(self, node: str) -> None:
        """Remove a node."""
        self._nodes.remove(node)
        self._points = [one for one in self._points if one[1] != node]

    def walk(self, key: str) -> Iterator[str]:
        """Yield all nodes, that of the key first, then as they follow on the ring."""
        start = bisect(self._points, (point_of(key), ""))
        seen: set[str] = set()
        for index in range(start, start + len(self._points)):
            node = self._points[index % len(self._points)][1]
            if node not in seen:
                seen.add(node)
                yield node

    def owner(self, key: str) -> str:
        """Return the node of a key."""
        return next(self.walk(key))


def fullest_over_mean(points: int, nodes: int, keys: int, draw: int) -> float:
    """Return the most keys of a node over the mean, with names of one draw."""
    ring = Ring(points)
    for number in range(nodes):
        ring.add(f"{draw} node {number}")
    counts = Counter(ring.owner(f"{draw} key {number}") for number in range(keys))
    return max(counts.values()) * nodes / keys
