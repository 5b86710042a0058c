"""Where the files of snapshots are, and those that no row names: being written, or to be deleted.

A file is noted before it is written, and again in the transaction that deletes its row. So files
that a killed process has left are found without listing all files, some of which belong to other
processes.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from sinkstream.conversations.database import Connection, in_marks
from sinkstream.conversations.errors import folder_error
from sinkstream.conversations.node import turn_of
from sinkstream.files import unlink_if_there

_NAME = re.compile(r"resp_([0-9a-f]{2})[0-9a-f]{30}\.[0-9a-f]{8}\.session")
_PART = re.compile(r"\.resp_([0-9a-f]{2})[0-9a-f]{30}\.[0-9a-f]{2}\.sinkstream-[a-z0-9_]{8}\.part")
"""A file that is being written, or whose writer was killed."""


def folder_of(secret: bytes) -> str:
    """Return the name of a store's own folder, next to those of other stores."""
    return blake2b(secret, digest_size=8, person=b"snapshots").hexdigest()


def new_file_name(node_id: str) -> str:
    """Return a unique file name for a snapshot of a turn, so that a late write replaces nothing."""
    return f"{turn_of(node_id)}.{secrets.token_hex(4)}.session"


Done = Callable[[str, bool], None]
"""Called with the name of a file, and whether it was deleted."""


class SnapshotFiles(Protocol):
    """Files by name. A name is written once."""

    def writing(self, name: str) -> AbstractContextManager[str]:
        """Give a path to write to; afterwards, the file has its name."""
        ...

    def reading(self, name: str) -> AbstractContextManager[str]:
        """Give a path to read from. If no file has that name, there is no file at the path."""
        ...

    def delete(self, name: str, done: Done) -> None:
        """Delete a file, if there is one. Does not wait for a network, and does not fail."""
        ...

    def close(self) -> None:
        """Wait until all pending deletions are done."""
        ...


class SnapshotFolder:
    """Implements `SnapshotFiles` in a folder private to its owner, local or shared by hosts.

    Names of files are joined as strings: see Note: [Paths as strings] in `files.py`.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder; create it if it is missing.

        Raises:
            StoreError: It cannot be written.
        """
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise folder_error(folder, error) from error

    def path(self, name: str) -> str:
        """Return where a file is, or would be."""
        return f"{self._folder_of(name)}/{name}"

    def _folder_of(self, name: str) -> str:
        digits = name.partition("_")[2]
        return f"{self._folder}/{digits[:2]}"

    @contextmanager
    def writing(self, name: str) -> Iterator[str]:
        """Give the file's own path; writers create the file by renaming."""
        with suppress(FileExistsError):
            os.mkdir(self._folder_of(name), 0o700)  # noqa: PTH102
        yield self.path(name)

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """Give the file's own path."""
        yield self.path(name)

    def delete(self, name: str, done: Done) -> None:
        """Delete a file."""
        is_gone = False
        with suppress(OSError):
            unlink_if_there(self.path(name))
            is_gone = True
        done(name, is_gone)

    def delete_others(self, names: Sequence[str], older_than_s: float = 0.0) -> None:
        """Delete all snapshots except the given ones, if they have not been written for a while.

        A file whose name is not a snapshot's stays.

        Raises:
            StoreError: The folder cannot be read.
        """
        kept = set(names)
        until = time.time() - older_than_s
        try:
            for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
                if _is_snapshot(path) and path.name not in kept:
                    with suppress(FileNotFoundError):  # another replica deletes them, too
                        _delete_old(path, until)
        except OSError as error:
            raise folder_error(self._folder, error) from error

    def close(self) -> None:
        """Do nothing: no deletion is pending."""


def _is_snapshot(path: Path) -> bool:
    """Return whether a path below the folder is one that `SnapshotFolder` writes to."""
    found = _NAME.fullmatch(path.name) or _PART.fullmatch(path.name)
    return found is not None and found[1] == path.parent.name and not path.parent.is_symlink()


def _delete_old(path: Path, until: float) -> None:
    found = path.lstat()
    if stat.S_ISREG(found.st_mode) and found.st_mtime <= until:
        path.unlink()


DOOMED_S = 60.0
"""The process that has deleted a snapshot has this time to delete its file, too."""
WRITING_S = 3600.0
"""How long a file may take to be written. Its writer can no longer add it afterwards."""
AT_ONCE = 1000  # files in a sweep


def is_added(connection: Connection, node_id: str, file: str) -> bool:
    """Return whether a row names a file, as after a commit whose outcome was not known."""
    found = connection.execute("SELECT file FROM snapshots WHERE node = ?", [node_id]).fetchone()
    return found is not None and found[0] == file


def note_new(connection: Connection, node_id: str, file: str) -> None:
    """Note a file that is about to be written."""
    if not is_added(connection, node_id, file):
        connection.execute(
            f"INSERT INTO loose_files VALUES (?, {connection.age}, 0) ON CONFLICT DO NOTHING",
            [file],
        )


def try_keep(connection: Connection, file: str) -> bool:
    """Remove a new file from the list, because a row will name it; return whether it may."""
    kept = connection.execute("DELETE FROM loose_files WHERE file = ? AND is_doomed = 0", [file])
    return kept.rowcount == 1


def doom(connection: Connection, files: Sequence[str]) -> None:
    """Note that new files are to be deleted: no row will name them."""
    for marks, some in in_marks(files):
        connection.execute(
            f"UPDATE loose_files SET is_doomed = 1, since = {connection.age} "
            f"WHERE file IN ({marks}) AND is_doomed = 0",
            some,
        )


def forget(connection: Connection, files: Sequence[str]) -> None:
    """Forget deleted files."""
    for marks, some in in_marks(files):
        connection.execute(f"DELETE FROM loose_files WHERE file IN ({marks})", some)


class FileDeletions:
    """Deletes files, and remembers which ones. Any thread may call it; nothing here waits."""

    def __init__(self, files: SnapshotFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._gone: list[str] = []

    def delete(self, name: str) -> None:
        """Delete a file soon. Does not fail: a file that remains is deleted by a later sweep."""
        with self._lock:
            if name in self._pending:
                return
            self._pending.add(name)
        self._files.delete(name, self._done)

    def take_gone(self) -> list[str]:
        """Return the files that have been deleted since the last call."""
        with self._lock:
            gone, self._gone = self._gone, []
            return gone

    def _done(self, name: str, is_gone: bool) -> None:
        with self._lock:
            self._pending.discard(name)
            if is_gone:
                self._gone.append(name)
