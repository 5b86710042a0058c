"""Processor time of servers: of their engines' threads, and of all their others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_ENGINE = "sinkstream"  # the name of an engine's thread
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds."""

    engines: float = 0.0
    others: float = 0.0
    """Event loops and pools of the servers."""
    client: float = 0.0
    """This process."""

    @property
    def outside(self) -> float:
        """Return what is not the engines'."""
        return self.others + self.client

    def figures(self) -> dict[str, float]:
        """Return them for a report."""
        return {name: round(value, 2) for name, value in asdict(self).items()}

    def __add__(self, more: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(
            self.engines + more.engines, self.others + more.others, self.client + more.client
        )

    def __sub__(self, before: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(
            self.engines - before.engines, self.others - before.others, self.client - before.client
        )


def processor_time(servers: Iterable[int]) -> ProcessorTime:
    """Return what servers, by their process ids, and this process have used so far."""
    by_kind = {True: 0.0, False: 0.0}
    for pid in servers:
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
            ticks = fields.split()[11:13]  # in the process, and in the kernel
            by_kind[name == _ENGINE] += sum(map(int, ticks)) / _TICKS
    return ProcessorTime(by_kind[True], by_kind[False], time.process_time())
