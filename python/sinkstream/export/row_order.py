"""Readers of rows in an order that differs from the source's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Read = Callable[[int, int], bytes]
"""Returns rows [begin, end)."""


def interleaved_rows(read: Read, head_dim: int) -> Read:
    """Return a reader of queries or keys whose rotated pairs are adjacent.

    Row 2i of a head is its row i, row 2i + 1 its row i + head_dim/2.
    """

    def permuted(begin: int, end: int) -> bytes:
        first, last = begin // head_dim * head_dim, -(-end // head_dim) * head_dim  # whole heads
        content = read(first, last)
        row = len(content) // (last - first)
        found = bytearray()
        for to in range(begin, end):
            head, rest = divmod(to, head_dim)
            start = (head * head_dim + rest // 2 + rest % 2 * (head_dim // 2) - first) * row
            found += content[start : start + row]
        return bytes(found)

    return permuted


def stacked_rows(parts: Sequence[Read], counts: Sequence[int]) -> Read:
    """Return a reader of several matrices, one after another.

    Args:
        parts: The readers of the matrices.
        counts: The number of rows of each.
    """

    def read(begin: int, end: int) -> bytes:
        found, first = bytearray(), 0
        for part, count in zip(parts, counts, strict=True):
            low, high = max(begin - first, 0), min(end - first, count)
            if low < high:
                found += part(low, high)
            first += count
        return bytes(found)

    return read
