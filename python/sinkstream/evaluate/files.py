"""Writes a file so that a reader finds the old one or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file: written beside it, flushed to the disk, and then renamed."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
