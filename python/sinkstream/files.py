"""Replaces a file as a whole: at every moment the path is the old file or the complete new one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replace_whole(
    path: str | os.PathLike[str], *, is_private: bool = False, buffering: int = -1
) -> Iterator[BinaryIO]:
    """Open a new file beside `path`; at the end of the block flush it to disk and rename it.

    An exception in the block removes the new file and leaves the old one as it was.

    Args:
        path: The file to replace; it need not exist.
        is_private: Only the owner may read and write it. Else the process's umask decides.
        buffering: As for `open`; 0 writes at once.

    Yields:
        The new file, open for reading and writing bytes.

    Raises:
        OSError: The folder does not exist, cannot be written, or is full.
    """
    target = Path(path)
    # Readable by its owner only.
    descriptor, name = tempfile.mkstemp(
        prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent
    )
    part = Path(name)
    try:
        if not is_private:
            os.fchmod(descriptor, 0o666 & ~_umask())
        with os.fdopen(descriptor, "w+b", buffering=buffering) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def _umask() -> int:
    """Return the process's umask, which Linux shows without changing it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def _flush_folder(folder: Path) -> None:
    """Bring a rename to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
