"""Files of snapshots that no row names: files being written, and files to delete.

A file is noted here before it is written, and again in the transaction that deletes its row. So
files that a killed process has left are found without listing all files, some of which belong to
other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sinkstream.conversations.connection import Connection
from sinkstream.conversations.deletion import in_marks
from sinkstream.conversations.snapshot_files import SnapshotFiles

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
            f"INSERT INTO loose_files VALUES (?, {connection.clock}, 0) ON CONFLICT DO NOTHING",
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
            f"UPDATE loose_files SET is_doomed = 1, since = {connection.clock} "
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
