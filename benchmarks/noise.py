"""What the machine does to pieces of work that are all the same, and what threads do meanwhile."""

from __future__ import annotations

import os
import pathlib
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


class ThreadClocks:
    """What the system counts of each thread of this process whose name begins with so much."""

    def __init__(self, prefix: str) -> None:
        self.names: list[str] = []
        self._files: list[int] = []
        for folder in sorted(pathlib.Path("/proc/self/task").iterdir()):
            name = (folder / "comm").read_text().strip()
            if name.startswith(prefix):
                self.names.append(name)
                self._files.append(os.open(folder / "schedstat", os.O_RDONLY))

    def read(self) -> list[tuple[float, float]]:
        """Return of each thread the milliseconds that it ran and that it waited for a core."""
        fields = [os.pread(file, 64, 0).split() for file in self._files]
        return [(int(ran) / 1e6, int(waited) / 1e6) for ran, waited, *_ in fields]

    def close(self) -> None:
        """Close the system's files."""
        while self._files:
            os.close(self._files.pop())
