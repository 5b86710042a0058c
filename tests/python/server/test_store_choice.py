"""What a server's settings say about its store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.open_store import Settings, open_folder
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.conversations.turns import TurnRequest
from sinkstream.errors import InvalidArgument
from sinkstream.loading import default_window
from sinkstream.loading.load import check_options
from sinkstream.server.config import ServerConfig, check_config
from sinkstream.server.store_choice import limits_of, open_turns, store_sentences, stored_window


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


def keep(model: Path, window: int, talks: int, config: ServerConfig | None = None) -> list[str]:
    """Have some conversations with a window, and return what a server then says of its store."""
    config = config or ServerConfig()
    with sinkstream.load(model, window=window, max_sequences=1, threads=1) as loaded:
        turns = open_turns(loaded, config)
        for number in range(talks):
            said = [{"role": "user", "content": f"say {number}"}]
            turn = turns.begin(TurnRequest("", said, {"max_tokens": 2, "seed": 1}))
            turn.stream.result()
            turn.end()
        sentences = store_sentences(loaded, config)
        turns.close()
    return sentences


def test_a_server_returns_to_the_window_of_its_latest_conversations(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    model = tiny_folder("llama")

    def find(config: ServerConfig | None = None, **options: Any) -> int | None:
        checked = check_options(max_sequences=1, **options)
        return stored_window(config or ServerConfig(), checked, str(model), download=False)

    assert find() is None
    keep(model, 92, 0)
    assert find() is None  # it holds nothing
    assert "Other" not in "".join(keep(model, 60, 2))
    assert find() == 60
    keep(model, 92, 1)
    assert find() == 92
    first, second = keep(model, 60, 0)
    assert find() == 60
    folder = tmp_path / "sinkstream" / "conversations"
    assert first.startswith(f"Conversations: 2 in {folder}/llama-")
    assert first.endswith(", at most 20 GB on disk.")
    assert second == "Other conversations of this model: 1 with --window 92."
    assert find(replace(ServerConfig(), store="none")) is None
    assert find(sinks=9) is None  # they belong to other sinks
    monkeypatch.setattr(default_window, "_free_bytes", lambda options: 1 << 16)
    assert find() is None  # it does not fit


def test_a_folder_that_is_given_decides_even_without_conversations(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_folder("llama")
    config = replace(ServerConfig(), store=str(tmp_path / "kept"), store_max_gb=0)
    find = partial(stored_window, config, check_options(), str(model), download=False)
    assert find() is None
    said = keep(model, 60, 0, config)
    assert said == [f"Conversations: 0 in {tmp_path / 'kept'}, without a limit on disk."]
    assert find() == 60
    (tmp_path / "kept" / "turns.sqlite").write_bytes(b"no database")
    assert find() is None  # the server then says what is wrong with it
