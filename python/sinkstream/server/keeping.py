"""Where a server's conversations are kept: in a store for the model, or nowhere."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from sinkstream.conversations.conversations import Conversations, identity_of
from sinkstream.conversations.opening import is_postgres
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.settings import Settings
from sinkstream.conversations.store_error import StoreError
from sinkstream.conversations.turns import Turns
from sinkstream.files import state_folder
from sinkstream.model import Model, host_of
from sinkstream.server.config import NO_STORE, ServerConfig
from sinkstream.server.peers.connecting import connect_peers

_GB = 10**9


def open_turns(model: Model, config: ServerConfig) -> Turns:
    """Return the object that begins a server's turns. Blocks.

    Raises:
        StoreError: The store cannot be used.
    """
    if config.store == NO_STORE:
        return PlainTurns(model)
    store: Path | str = config.store
    if not is_postgres(store):
        store = Path(store).expanduser() if store else default_store(model)
    settings = Settings(
        park_s=config.park_s,
        ttl_s=config.session_ttl or None,
        max_bytes=int(config.store_max_gb * _GB) or None,
        snapshot_tokens=config.snapshot_tokens or None,
        replica=config.replica,
        address=config.address,
        snapshots=config.snapshots,
        thoughts=config.thoughts or None,
    )
    turns = Conversations(model, store, settings)
    connect_peers(turns, config)
    return turns


def default_store(model: Model) -> Path:
    """Return a folder that is unique to this model, sinks, window and chat template.

    Raises:
        StoreError: There is no home folder.
    """
    digest = blake2b(identity_of(host_of(model)).encode(), digest_size=4).hexdigest()
    name = f"{Path(model.path).stem}-{digest}"
    folder = state_folder()
    if folder is None:
        raise StoreError("serve: `store` must be given, because there is no home folder.")
    return folder / "sinkstream" / "conversations" / name
