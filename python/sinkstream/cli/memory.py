"""The memory that this process uses for itself, and what is left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")  # in a container, its own limits are at the root


def resident_bytes() -> int:
    """Return the anonymous resident memory (RssAnon), without code and mapped files."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def available_bytes() -> int:
    """Return how much memory programs can still get, within a container's limit."""
    available = 0
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):  # no container, or no limit: "max"
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        available = min(available, max(0, limit - used))
    return available
