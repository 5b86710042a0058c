"""Arithmetic on measurements: quantiles, lines, fairness, repetition. Knows no source of them."""

from __future__ import annotations

import itertools
import math
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value that a share q of all values is below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def spread(milliseconds: Sequence[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum of equal pieces of work."""
    p50, p99 = quantile(milliseconds, 0.5), quantile(milliseconds, 0.99)
    return {
        "count": len(milliseconds),
        "p50_ms": round(p50, 3),
        "p99_ms": round(p99, 3),
        "p99_over_p50": round(p99 / p50, 3),
        "largest_ms": round(max(milliseconds), 3),
    }


@dataclass(frozen=True)
class Line:
    """A line through points by least squares."""

    slope: float
    error: float  # the slope's standard error; 0 where the points lie on the line

    def most_if_flat(self, resolution: float, span: float) -> float:
        """Return the largest slope that is indistinguishable from 0.

        Two standard errors (95 %), plus the most that a single rise of y by `resolution`, its unit,
        can add to a line over a `span` of x: 1.5 times resolution / span.
        """
        return 2 * self.error + 1.5 * resolution / span


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Return the line through at least three points (x, y) with different x."""
    n = len(points)
    if n < 3:
        raise ValueError(f"line: `points` must be at least 3, but are {n}.")
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    width = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / width
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return Line(slope, math.sqrt(rest / (n - 2) / width))


def unfairness(rates: Sequence[float]) -> float:
    """Return the median rate over the slowest one: 1 is fair."""
    return statistics.median(rates) / min(rates)


def gaps_ms(stamps: Sequence[Sequence[float]]) -> list[float]:
    """Return milliseconds between tokens of the same stream; stamps[i] is token i of all."""
    return [
        1000 * (later - earlier)
        for before, after in itertools.pairwise(stamps)
        for earlier, later in zip(before, after, strict=True)
    ]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def distinct(words: Sequence[str], length: int) -> float:
    """Return the share of distinct sequences among all sequences of `length` words."""
    found = list(zip(*(words[i:] for i in range(length)), strict=False))
    return len(set(found)) / len(found)


def compression(text: str) -> float:
    """Return the size of a text over its compressed size."""
    whole = text.encode()
    return len(whole) / len(zlib.compress(whole, 9))
