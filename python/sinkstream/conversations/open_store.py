"""How conversations are kept, and the store of the only process that uses it: a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sinkstream.conversations.fence import Fence
from sinkstream.conversations.snapshot_files import SnapshotFiles, SnapshotFolder, folder_of
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.host import Host
from sinkstream.sessions.pinned import Sinks


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of memory, disk and time. None means no limit."""

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
    ttl_s: float | None = 30 * 86400.0
    """Conversations that have not been used for this long are deleted. Only time in which the store
    is in use counts."""
    single_ttl_s: float | None = 86400.0
    """The same of a single turn that was never continued, and that its client cannot name."""
    max_bytes: int | None = 20 << 30
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


def identity_of(host: Host) -> str:
    """Describe what stored token ids and hashes depend on."""
    sinks, window = host.spec.kept(*host.window)
    template = blake2b((host.text.chat_template or "").encode(), digest_size=8).hexdigest()
    return f"{host.native.fingerprint()}, sinks {sinks}, window {window}, template {template}"
