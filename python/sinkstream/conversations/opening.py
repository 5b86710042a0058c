"""Opens the store that a setting names: a folder with SQLite, or PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sinkstream.conversations.settings import Settings
from sinkstream.conversations.snapshot_files import SnapshotFiles, SnapshotFolder, folder_of
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.conversations.store import Store
from sinkstream.conversations.store_error import StoreError
from sinkstream.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_POSTGRES = ("postgresql://", "postgres://")
_S3 = "s3://"
_MISSING = (
    "store: the packages of the extra `{extra}` must be installed for {what}, but {name} is not. "
    "`pip install 'sinkstream[{extra}]'` installs them."
)


def is_postgres(store: Path | str) -> bool:
    """Return whether a setting names a database, not a folder."""
    return isinstance(store, str) and store.startswith(_POSTGRES)


def open_store(store: Path | str, model: str, settings: Settings) -> Store:
    """Open a store; create it if there is none.

    Args:
        store: A folder, or `postgresql://…`.
        model: Identifies the model, its S and W, and its chat template.
        settings: Which process uses it, and where its snapshots are.

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
    opened = _opened(store, model, settings)
    try:
        if opened.replica:
            opened.announce(settings.address)
    except BaseException:
        opened.close()
        raise
    return opened


def _opened(store: Path | str, model: str, settings: Settings) -> Store:
    if not is_postgres(store):
        files = _files(settings.snapshots) if settings.snapshots else None
        return SqliteStore.open(
            Path(store), model, replica=settings.replica, files=files, full_sync=settings.full_sync
        )
    if not settings.snapshots:
        raise InvalidArgument(
            "serve: `snapshots` must be given with a store in PostgreSQL: a folder that all hosts "
            "share, or s3://bucket/path.",
            param="snapshots",
        )
    try:
        from sinkstream.conversations.postgres_store import PostgresStore
    except ModuleNotFoundError as error:
        what = _MISSING.format(extra="postgres", what="a store in PostgreSQL", name=error.name)
        raise StoreError(what) from None
    files = _files(settings.snapshots)
    return PostgresStore.open(str(store), model, files=files, replica=settings.replica)


def _files(snapshots: str) -> Callable[[bytes], SnapshotFiles]:
    """Return a function that opens the files of the store with a given secret."""
    if not snapshots.startswith(_S3):
        folder = Path(snapshots).expanduser()
        return lambda secret: SnapshotFolder(folder / folder_of(secret))
    try:
        from sinkstream.conversations.snapshot_bucket import SnapshotBucket
    except ModuleNotFoundError as error:
        what = _MISSING.format(extra="postgres", what="snapshots in S3", name=error.name)
        raise StoreError(what) from None
    bucket = SnapshotBucket(snapshots)
    return lambda secret: bucket
