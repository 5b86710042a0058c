"""Typed lines, saved between chats in a file that only its owner can read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from sinkstream.files import replace_whole, state_folder

_KEPT = 1000
_MOST = 2 * _KEPT  # so that most chats do not rewrite the file


def default_path() -> Path | None:
    """Return the path of the file; None if there is no home folder."""
    folder = state_folder()
    return None if folder is None else folder / "sinkstream" / "chat_history"


class History:
    """The file: one JSON string per line, because a message may have several lines.

    Lines are appended, so that two simultaneous chats do not lose each other's lines. Once the file
    has twice as many lines as are kept, the next chat replaces it with a shorter one.
    """

    def __init__(self, path: Path) -> None:
        """Open the file at `path`; create it if it does not exist.

        Raises:
            OSError: It cannot be opened.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._file = _open(path)
        self._file.seek(0)
        self.entries: Sequence[str] = self._read()

    def _read(self) -> list[str]:
        lines = self._file.readlines()
        kept = [entry for line in lines[-_KEPT:] if (entry := _entry_of(line)) is not None]
        if len(lines) > _MOST:
            with replace_whole(self._path, is_private=True) as new:
                new.writelines(f"{json.dumps(entry)}\n".encode() for entry in kept)
            self._file.close()
            self._file = _open(self._path)
        return kept

    def add(self, entry: str) -> None:
        """Append an entry.

        Raises:
            OSError: The disk is full.
        """
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open(path: Path) -> TextIO:
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(number, 0o600)  # an existing file may have other permissions
    return os.fdopen(number, "a+", encoding="utf-8", errors="replace")


def _entry_of(line: str) -> str | None:
    """Return the entry on a line of the file; None if the line is not a valid entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
