"""What a server's settings say about its store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sinkstream.conversations.open_store import Settings, open_folder
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.errors import InvalidArgument
from sinkstream.server.config import ServerConfig, check_config
from sinkstream.server.store_choice import limits_of


def settings(**given: Any) -> Settings:
    return Settings(**limits_of(replace(ServerConfig(), **given)))


@pytest.mark.parametrize(("sync", "level"), [("normal", 1), ("full", 2)])
def test_a_commit_waits_for_the_disk_if_that_is_asked_for(
    tmp_path: Path, sync: str, level: int
) -> None:
    store = open_folder(tmp_path, "model", settings(store_sync=sync)).store
    assert isinstance(store, SqliteStore)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    store.close()


def test_another_sync_is_refused() -> None:
    with pytest.raises(InvalidArgument, match='`store_sync` must be "full" or "normal"'):
        check_config(replace(ServerConfig(), store_sync="off"))


def test_limits_of_0_are_none() -> None:
    none = settings(session_ttl=0, single_turn_ttl=0, store_max_gb=0)
    assert (none.ttl_s, none.single_ttl_s, none.max_bytes) == (None, None, None)
    assert settings().single_ttl_s == 86400
