"""What the machine itself does to pieces of work that are all the same."""

from __future__ import annotations

import statistics
import time

_PROBE_BYTES = 512 << 20
_PROBE_S = 0.5


def empty_loops(milliseconds: float, count: int) -> list[float]:
    """Return the milliseconds of equal empty loops on one core that take about so long."""

    def loop(turns: int) -> float:
        started = time.perf_counter()
        for _ in range(turns):
            pass
        return 1000 * (time.perf_counter() - started)

    turns = 100_000
    turns = round(turns * milliseconds / statistics.median(loop(turns) for _ in range(21)))
    return [loop(turns) for _ in range(count)]


def read_size(milliseconds: float, threads: int) -> int:
    """Return the bytes that a plain read of memory takes about so long for, just now."""
    from sinkstream import _core

    rate = _core.sustained_read_rate(_PROBE_BYTES, threads, _PROBE_S)
    return round(rate * milliseconds / 1000)


def plain_reads(size: int, count: int, threads: int) -> list[float]:
    """Return the milliseconds of each of so many plain reads of as many bytes of memory."""
    from sinkstream import _core

    return [1000 * seconds for seconds in _core.read_times(size, threads, count)]
