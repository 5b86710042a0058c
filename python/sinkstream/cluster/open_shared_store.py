"""Opens the store that several servers share: a folder with SQLite on one host, or PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sinkstream.cluster.owners import Owners
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.fence import Fence
from sinkstream.conversations.open_store import Settings, snapshot_folder
from sinkstream.conversations.snapshot_files import SnapshotFiles
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.conversations.store import Store
from sinkstream.errors import InvalidArgument, how_to_install
from sinkstream.model import Model
from sinkstream.server.config import BUCKET, DATABASE

_NAME = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def missing(where: str, what: str, error: ModuleNotFoundError) -> StoreError:
    """Return the error of what needs packages that are not installed."""
    return StoreError(
        f"{where}: the packages of the extra `cluster` must be installed for {what}, but "
        f"{error.name} is not. {how_to_install('cluster')} installs them."
    )


@dataclass(frozen=True, slots=True)
class SharedSettings(Settings):
    """The settings of a store that other processes may use at the same time."""

    replica: str = ""
    """The name of this process among those that use the store; "" if it is the only one. In
    PostgreSQL, "" derives one from the host's name."""
    address: str = ""
    """Where other replicas can ask this one to release a conversation; "" if they cannot."""


def shared_conversations(
    model: Model, store: Path | str, settings: SharedSettings | None = None
) -> Conversations:
    """Return the conversations in a store that several processes may use.

    Args:
        model: As for `Conversations`.
        store: A folder, or `postgresql://…`.
        settings: Its limits, and which process uses it. `snapshots` may also be `s3://…`.

    Raises:
        StoreError: The store cannot be used; the message says why.
        InvalidArgument: A setting is not allowed.
    """
    chosen = settings or SharedSettings()
    return Conversations(model, lambda identity: open_shared(store, identity, chosen), chosen)


def open_shared(store: Path | str, model: str, settings: SharedSettings) -> Fence:
    """Open a store, and announce this replica.

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
    opened, replica = _opened(store, model, settings)
    if not replica:
        return Fence(opened)
    try:
        owners = Owners(opened, replica)
        owners.announce(settings.address)
        return ReplicaFence(owners, settings.address)
    except BaseException:
        opened.close()
        raise


def _opened(store: Path | str, model: str, settings: SharedSettings) -> tuple[Store, str]:
    """Return the store, and the name of this process; "" if no other can use it."""
    replica = settings.replica
    files = _files(settings.snapshots) if settings.snapshots else None
    if not isinstance(store, str) or not store.startswith(DATABASE):
        opened = SqliteStore.open(
            Path(store), model, is_shared=replica != "", files=files, full_sync=settings.full_sync
        )
        return opened, replica
    if files is None:
        raise InvalidArgument(
            "serve: `snapshots` must be given with a store in PostgreSQL: a folder that all hosts "
            "share, or s3://bucket/path.",
            param="snapshots",
        )
    try:
        from sinkstream.cluster.postgres_store import PostgresStore, own_name
    except ModuleNotFoundError as error:
        raise missing("store", "a store in PostgreSQL", error) from None
    return PostgresStore.open(store, model, files=files), replica or own_name()


def _files(snapshots: str) -> Callable[[bytes], SnapshotFiles]:
    """Return a function that opens the files of the store with a given secret."""
    if not snapshots.startswith(BUCKET):
        return snapshot_folder(snapshots)
    try:
        from sinkstream.cluster.snapshot_bucket import SnapshotBucket
    except ModuleNotFoundError as error:
        raise missing("store", "snapshots in S3", error) from None
    bucket = SnapshotBucket(snapshots)
    return lambda secret: bucket
