"""The memory that this process uses for itself."""

from __future__ import annotations

from pathlib import Path


def resident_bytes() -> int:
    """Return the anonymous resident memory (RssAnon), without code and mapped files."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
