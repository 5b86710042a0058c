"""Where a server's conversations are kept: in a folder for the model, or nowhere.

And what is said of that before and after the model loads: the window of a store that is there, and
its other stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.open_store import Identity, Settings, StoreOutline, outline_of
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import Turns
from sinkstream.files import state_folder
from sinkstream.host import ModelOptions
from sinkstream.loading.default_window import fits
from sinkstream.loading.open_checkpoint import rounded
from sinkstream.model import Model, host_of
from sinkstream.server.config import NO_STORE, ServerConfig

_GB = 10**9
_DIGITS = 8  # of the hash in the name of a default store


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
    digest = blake2b(str(Identity.of(host_of(model))).encode(), digest_size=4).hexdigest()
    folder = _default_folder()
    if folder is None:
        raise StoreError("serve: `store` must be given, because there is no home folder.")
    return folder / f"{Path(model.path).stem}-{digest}"


def _default_folder() -> Path | None:
    """Return the folder of the stores that have no folder of their own."""
    folder = state_folder()
    return None if folder is None else folder / "sinkstream" / "conversations"


def _stores_of(path: str) -> list[StoreOutline]:
    """Return the default stores of models whose file or folder has this name."""
    folder, name = _default_folder(), f"{Path(path).stem}-"
    if folder is None or not folder.is_dir():
        return []
    folders = [
        each
        for each in folder.iterdir()
        if each.name.startswith(name) and len(each.name) == len(name) + _DIGITS
    ]
    return [found for each in sorted(folders) if (found := outline_of(each)) is not None]


def stored_window(
    config: ServerConfig, options: ModelOptions, path: str | None, *, download: bool
) -> int | None:
    """Return the window of the conversations that a server would find, if it fits into memory.

    With `--store`, it is that of the store in this folder; otherwise, that of the model's store
    that was used last. See docs/decisions/0060-a-server-keeps-the-window-of-its-store.md.

    Args:
        config: The server's settings.
        options: How the model is to be loaded, without a window.
        path: The model, as for `load`.
        download: As for `load`.

    Raises:
        CheckpointError: The model cannot be read.
        InvalidArgument: It has no such name.
    """
    if config.store == NO_STORE or config.is_in_database:
        return None
    folder = Path(config.store).expanduser() if config.store else _default_folder()
    if folder is None or not folder.is_dir():
        return None
    opened = open_tensors(path, download=download, headers_only=True)
    with closing(opened.source):
        found: Sequence[StoreOutline | None] = _stores_of(opened.path)
        if config.store:
            found = [outline_of(folder)]
        stores = [
            one
            for one in found
            if one is not None
            if one.conversations or config.store
            if (one.identity.sinks, one.identity.window)
            == opened.spec.kept(options.sinks, one.identity.window)
        ]
        if not stores:
            return None
        window = max(stores, key=lambda one: one.used_at).identity.window
        tensors = rounded(opened, options.quantize).tensors
        return window if fits(options.with_window(window), opened.spec, tensors) else None


def store_sentences(model: Model, config: ServerConfig) -> list[str]:
    """Say where a server keeps its conversations, how many there are, and which it does not see."""
    if config.store == NO_STORE:
        return ["Conversations: not kept."]
    limit = f"at most {config.store_max_gb:g} GB" if config.store_max_gb else "without a limit"
    if config.is_in_database:
        return [f"Conversations: in PostgreSQL, {limit}."]
    folder = folder_of(model, config)
    kept = outline_of(folder)
    said = [f"Conversations: {kept.conversations if kept else 0:,} in {folder}, {limit} on disk."]
    if kept is not None and not config.store:
        others = [
            one for one in _stores_of(model.path) if one.conversations and one.folder != folder
        ]
        said += _sentences_on(kept.identity, others)
    return said


def _sentences_on(own: Identity, others: list[StoreOutline]) -> list[str]:
    """Say how to return to the other conversations of a model."""
    ways = [
        f"{one.conversations:,} with --window {one.identity.window}"
        + (f" --sinks {one.identity.sinks}" if one.identity.sinks != own.sinks else "")
        for one in sorted(others, key=lambda one: one.used_at, reverse=True)
        if replace(one.identity, sinks=own.sinks, window=own.window) == own
    ]
    return [f"Other conversations of this model: {', '.join(ways)}."] if ways else []
