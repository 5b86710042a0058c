"""How conversations are kept, and the store of the only process that uses it: a folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sinkstream.conversations.fence import Fence
from sinkstream.conversations.snapshot_files import SnapshotFiles, SnapshotFolder, folder_of
from sinkstream.conversations.sqlite_store import SqliteStore, outline_facts
from sinkstream.host import Host
from sinkstream.sessions.pinned import Sinks


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of memory, disk and time. None means no limit; `server/config.py` has a server's."""

    seats: int | None = None
    """Sequences of the model to use; None for all of them."""
    park_s: float = 300.0
    """Idle sessions leave memory after this time."""
    snapshot_tokens: int | None = None
    """A conversation gets a snapshot when it has grown by this number of tokens; None for S + W."""
    replay_tokens: int | None = None
    """A parked session that so few tokens rebuild gets no snapshot; None for (S + W) / 8."""
    saved_early: int | None = None
    """How many of the sessions that give up their seats next are kept saved while all seats are
    taken; None for a quarter of the seats, but at least one."""
    max_replay: int | None = None
    """The most tokens to read again for a turn whose state is lost."""
    ttl_s: float | None = None
    """Conversations that have not been used for this long are deleted. Only time in which the store
    is in use counts."""
    single_ttl_s: float | None = None
    """The same of a single turn that was never continued, and that its client cannot name."""
    max_bytes: int | None = None
    """The size of the store beyond which the tenant that takes most loses its oldest snapshots,
    then its oldest conversations."""
    max_conversations: int | None = None
    """The number per tenant; beyond it, the oldest are deleted."""
    sinks: Sinks = None
    """What of a conversation stays in the window for good if its request does not say."""
    thoughts: str | None = None
    """Of `Model.session`: what conversations keep of the thoughts of earlier replies."""
    full_sync: bool = False
    """Whether a committed turn also survives a power cut."""
    maintenance_s: float = 5.0
    """How often idle sessions, age and size are checked."""
    snapshots: str = ""
    """A folder for snapshots, in which each store has a subfolder; "" is one in the store's."""


Opener = Callable[[str], Fence]
"""Opens a store that belongs to the model which a text identifies, and returns its fence."""


def open_folder(folder: Path, model: str, settings: Settings) -> Fence:
    """Open a store in a folder; create it if there is none.

    Args:
        folder: Where it is.
        model: Identifies the model, its S and W, and its chat template.
        settings: Where its snapshots are.

    Raises:
        StoreError: It cannot be used; the message says why.
    """
    files = snapshot_folder(settings.snapshots) if settings.snapshots else None
    return Fence(SqliteStore.open(folder, model, files=files, full_sync=settings.full_sync))


def snapshot_folder(folder: str) -> Callable[[bytes], SnapshotFiles]:
    """Return a function that opens the files of the store with a given secret."""
    path = Path(folder).expanduser()
    return lambda secret: SnapshotFolder(path / folder_of(secret))


@dataclass(frozen=True, slots=True)
class Identity:
    """What stored token ids and hashes depend on: a store belongs to it."""

    weights: str
    """The fingerprint of the weights."""
    sinks: int
    window: int
    template: str
    """A hash of the chat template."""

    def __str__(self) -> str:
        return f"{self.weights}, sinks {self.sinks}, window {self.window}, template {self.template}"

    @classmethod
    def of(cls, host: Host) -> Identity:
        """Return that of a loaded model."""
        template = blake2b((host.text.chat_template or "").encode(), digest_size=8).hexdigest()
        return cls(host.native.fingerprint(), *host.spec.kept(*host.window), template)

    @classmethod
    def read(cls, text: str) -> Identity | None:
        """Return what `str` has written; None for any other text."""
        if (found := _IDENTITY.fullmatch(text)) is None:
            return None
        return cls(found[1], int(found[2]), int(found[3]), found[4])


_IDENTITY = re.compile(r"(.*), sinks (\d+), window (\d+), template (\w+)")


@dataclass(frozen=True, slots=True)
class StoreOutline:
    """A store in a folder, as it looks without being opened."""

    folder: Path
    identity: Identity
    conversations: int
    """Of all keys, also those that are not listed."""
    used_at: float
    """When it was last written, by the clock of the file system."""


def outline_of(folder: Path) -> StoreOutline | None:
    """Describe the store in a folder; None if there is none that can be read.

    Another process may be using it.
    """
    found = outline_facts(folder)
    identity = found and Identity.read(found[0])
    return StoreOutline(folder, identity, *found[1:]) if found and identity else None
