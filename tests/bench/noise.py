"""What the machine itself does to pieces of work that are all the same."""

from __future__ import annotations

import statistics
import time


def _loop(turns: int) -> float:
    started = time.perf_counter()
    for _ in range(turns):
        pass
    return 1000 * (time.perf_counter() - started)


def loop_turns(milliseconds: float) -> int:
    """Return how many turns of an empty loop on one core take about so long, just now."""
    turns = 100_000
    return round(turns * milliseconds / statistics.median(_loop(turns) for _ in range(21)))


def empty_loops(turns: int, count: int) -> list[float]:
    """Return the milliseconds of each of so many empty loops of as many turns, on one core."""
    return [_loop(turns) for _ in range(count)]


def plain_reads(size: int, count: int, threads: int) -> list[float]:
    """Return the milliseconds of each of so many plain reads of as many bytes of memory."""
    from sinkstream import _core

    return [1000 * seconds for seconds in _core.read_times(size, threads, count)]
