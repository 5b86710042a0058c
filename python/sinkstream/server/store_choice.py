"""Where a server's conversations are kept: in a folder for the model, or nowhere."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.open_store import Settings, identity_of
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import Turns
from sinkstream.files import state_folder
from sinkstream.model import Model, host_of
from sinkstream.server.config import NO_STORE, ServerConfig

_GB = 10**9


def open_turns(model: Model, config: ServerConfig) -> Turns:
    """Return the object that begins a server's turns. Blocks.

    Raises:
        StoreError: The store cannot be used.
    """
    if config.store == NO_STORE:
        return PlainTurns(model, config.pinned)
    return Conversations(model, folder_of(model, config), Settings(**limits_of(config)))


def limits_of(config: ServerConfig) -> dict[str, Any]:
    """Return the fields of `Settings` that a server's settings name."""
    return {
        "park_s": config.park_s,
        "ttl_s": config.session_ttl or None,
        "single_ttl_s": config.single_turn_ttl or None,
        "full_sync": config.store_sync == "full",
        "max_bytes": int(config.store_max_gb * _GB) or None,
        "snapshot_tokens": config.snapshot_tokens or None,
        "snapshots": config.snapshots,
        "sinks": config.pinned,
        "thoughts": config.thoughts or None,
    }


def folder_of(model: Model, config: ServerConfig) -> Path:
    """Return the folder of a server's conversations.

    Raises:
        StoreError: There is no home folder.
    """
    return Path(config.store).expanduser() if config.store else default_store(model)


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
