"""Opens the store that a setting names: a folder with SQLite, or PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path

from sinkstream.errors import InvalidArgument
from sinkstream.server.conversations.settings import Settings
from sinkstream.server.conversations.snapshot_files import SnapshotFiles, SnapshotFolder
from sinkstream.server.conversations.sqlite_store import SqliteStore
from sinkstream.server.conversations.store import Store

_NAME = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def open_store(store: Path | str, model: str, settings: Settings) -> Store:
    """Open a store; create it if there is none.

    Args:
        store: A folder.
        model: Identifies the model, its S and W, and its chat template.
        settings: Who uses it, and where its snapshots are.

    Raises:
        StoreError: It cannot be used; the message says why.
        InvalidArgument: A setting is not allowed.
    """
    if settings.replica and not _NAME.fullmatch(settings.replica):
        raise InvalidArgument(
            "serve: `replica` must have 1 to 128 ASCII letters, digits, dots, colons, underscores "
            f"or hyphens, but is {settings.replica[:80]!r}.",
            param="replica",
        )
    files: SnapshotFiles | None = None
    if settings.snapshots:
        files = SnapshotFolder(Path(settings.snapshots).expanduser())
    opened = SqliteStore.open(
        Path(store), model, replica=settings.replica, files=files, full_sync=settings.full_sync
    )
    try:
        if opened.replica:
            opened.announce(settings.address)
    except BaseException:
        opened.close()
        raise
    return opened
