"""Equal pieces of work that show the machine's jitter, and clocks of a process's threads."""

from __future__ import annotations

import os
import pathlib
import statistics
import time


def _loop(iterations: int) -> float:
    started = time.perf_counter()
    for _ in range(iterations):
        pass
    return 1000 * (time.perf_counter() - started)


def loop_iterations(milliseconds: float) -> int:
    """Return how many iterations of an empty loop currently take about `milliseconds`."""
    probe = 100_000
    return round(probe * milliseconds / statistics.median(_loop(probe) for _ in range(21)))


def empty_loops(iterations: int, count: int) -> list[float]:
    """Return the milliseconds of each of `count` empty loops on one core."""
    return [_loop(iterations) for _ in range(count)]


class ThreadClocks:
    """The system's counters of each thread of this process whose name begins with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.names: list[str] = []
        self._files: list[int] = []
        for folder in sorted(pathlib.Path("/proc/self/task").iterdir()):
            name = (folder / "comm").read_text().strip()
            if name.startswith(prefix):
                self.names.append(name)
                self._files.append(os.open(folder / "schedstat", os.O_RDONLY))

    def read(self) -> list[tuple[float, float]]:
        """Return, for each thread, the milliseconds that it ran and that it waited for a core."""
        fields = [os.pread(file, 64, 0).split() for file in self._files]
        return [(int(ran) / 1e6, int(waited) / 1e6) for ran, waited, *_ in fields]

    def close(self) -> None:
        """Close the files in /proc."""
        while self._files:
            os.close(self._files.pop())
