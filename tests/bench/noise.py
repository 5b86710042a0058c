"""What the machine itself does to pieces of work that are all the same."""

from __future__ import annotations

import statistics
import time


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
