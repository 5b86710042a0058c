"""Processor time of servers: of their engines' threads, and of all their others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
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
    elsewhere: float = 0.0
    """Everything else on the machine: what else a real run has competed with."""

    @property
    def outside(self) -> float:
        """Return what the servers and this process have used outside of the engines."""
        return self.others + self.client

    def figures(self) -> dict[str, float]:
        """Return them for a report."""
        return {name: round(value, 2) for name, value in asdict(self).items()}

    def __add__(self, more: ProcessorTime) -> ProcessorTime:
        mine, its = astuple(self), astuple(more)
        return ProcessorTime(*(one + other for one, other in zip(mine, its, strict=True)))

    def __sub__(self, before: ProcessorTime) -> ProcessorTime:
        mine, its = astuple(self), astuple(before)
        return ProcessorTime(*(one - other for one, other in zip(mine, its, strict=True)))


def processor_time(servers: Iterable[int]) -> ProcessorTime:
    """Return what servers, by their process ids, and this process have used so far."""
    by_kind = {True: 0.0, False: 0.0}
    for pid in servers:
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
            ticks = fields.split()[11:13]  # in the process, and in the kernel
            by_kind[name == _ENGINE] += sum(map(int, ticks)) / _TICKS
    client = time.process_time()
    ours = by_kind[True] + by_kind[False] + client
    return ProcessorTime(by_kind[True], by_kind[False], client, _busy_s() - ours)


def _busy_s() -> float:
    """Return what all processors of the machine have done."""
    user, nice, system, _idle, _waiting, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split()[1:11]
    )
    return (user + nice + system + irq + softirq) / _TICKS
