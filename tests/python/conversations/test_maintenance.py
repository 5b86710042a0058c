"""Work between turns: a failure does not prevent the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.opening import Settings
from tests.python.conversations.stores import StoreLocation
from tests.python.conversations.talk import (
    STILL,
    Chat,
    ask,
    open_conversations,
    user,
)


def fails_first(work: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return work that fails the first time."""
    errors = [error]

    def run(*values: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(*values)

    return run


def always(error: Exception) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


ERRORS = [
    OSError(28, "No space left on device"),
    StoreError("store: the bucket cannot be reached."),
    SessionMoved("sess_1"),
]


def two_chats(model: sinkstream.Model, folder: Path, **settings: Any) -> Conversations:
    conversations = open_conversations(model, folder, **settings)
    for text in "ab":
        Chat(conversations).say(text)
    return conversations


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_snapshot_that_cannot_be_written_keeps_none_of_the_others(
    model: sinkstream.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    conversations = two_chats(model, tmp_path, snapshot_tokens=0)
    states = conversations._restorer
    monkeypatch.setattr(states.snapshots, "save", fails_first(states.snapshots.save, error))
    with caplog.at_level(logging.WARNING, "sinkstream"):
        conversations._maintenance.run()
    assert len(list(conversations._store.oldest_snapshots())) == 1
    assert [one.state for one in states.residency.all()] == ["idle", "idle"]
    assert caplog.text.count("upkeep failed in 1 place ") == (error is not ERRORS[-1])
    conversations._maintenance.run()
    assert len(list(conversations._store.oldest_snapshots())) == 2


def test_snapshots_that_cannot_be_written_leave_parking_and_expiry(
    model: sinkstream.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conversations = two_chats(
        model, tmp_path, snapshot_tokens=0, replay_tokens=0, park_s=0.0, ttl_s=0.0
    )
    monkeypatch.setattr(conversations._restorer.snapshots, "save", always(ERRORS[0]))
    time.sleep(0.01)
    with caplog.at_level(logging.WARNING, "sinkstream"):
        conversations._maintenance.run()
    assert conversations._restorer.residency.all() == []
    assert conversations._store.conversations("") == []
    assert caplog.text.count("upkeep failed in 2 places ") == 1


@pytest.mark.parametrize("settings", [{"ttl_s": 0.0}, {"max_conversations": 0}, {"max_bytes": 0}])
def test_a_conversation_that_cannot_be_deleted_keeps_none_of_the_others(
    model: sinkstream.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    conversations = two_chats(model, tmp_path, **settings)
    upkeep = conversations._maintenance
    monkeypatch.setattr(upkeep, "_delete", fails_first(upkeep._delete, ERRORS[1]))
    time.sleep(0.01)
    upkeep.run()
    assert len(conversations._store.conversations("")) == 1


@pytest.mark.parametrize("stage", ["delete_loose_files", "usage"])
def test_a_stage_that_fails_keeps_none_of_the_others(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    conversations = two_chats(model, tmp_path, park_s=0.0, ttl_s=0.0)
    monkeypatch.setattr(conversations._store, stage, always(ERRORS[1]))
    time.sleep(0.01)
    conversations._maintenance.run()
    assert conversations._restorer.residency.all() == []
    assert conversations._store.conversations("") == []
    monkeypatch.undo()


# ---- the sweep by size ---------------------------------------------------------------------------


def filled(model: sinkstream.Model, location: StoreLocation, count: int) -> Conversations:
    settings = {"maintenance_s": STILL, "saved_early": 0, "snapshot_tokens": 1 << 40}
    conversations = location.conversations(model, **settings)
    for i in range(count):
        ask(conversations, [user(f"{i}")], seed=i, record="x" * 20_000)
    return conversations


def counted(conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets each statement that reads."""
    store, said = conversations._store, list[str]()
    rows = store.rows

    def note(query: str, values: Any = ()) -> list[Any]:
        said.append(query)
        return rows(query, values)

    monkeypatch.setattr(store, "rows", note)
    return said


def test_a_sweep_reads_the_sizes_of_all_turns_once(
    model: sinkstream.Model, location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many conversations it deletes."""
    sums = []
    for count in (2, 6):
        conversations = filled(model, location, count)
        conversations._maintenance._settings = Settings(max_bytes=0)
        said = counted(conversations, monkeypatch)
        conversations._maintenance.run()
        assert conversations._store.conversations("") == []
        everything = [one for one in said if "SUM" in one and "WHERE" not in one]
        sums.append([one for one in everything if "snapshots" not in one])
        conversations.close()
    assert [len(each) for each in sums] == ([1, 1] if location.is_postgres else [0, 0])


def test_a_sweep_deletes_no_more_than_is_over(
    model: sinkstream.Model, location: StoreLocation
) -> None:
    conversations = filled(model, location, 6)
    store = conversations._store
    newest = [name for name, _ in store.conversations("")][:3]
    before = store.usage().transcripts
    over = sum(store.size_of(name) for name, _ in store.conversations("")[3:])
    conversations._maintenance._settings = Settings(max_bytes=before - over)
    conversations._maintenance.run()
    assert [name for name, _ in store.conversations("")] == newest
    assert store.usage().transcripts <= before - over


def test_sizes_of_all_turns_are_read_again_after_a_hundred_times_as_long(
    model: sinkstream.Model, location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = filled(model, location, 1)
    upkeep, store = conversations._maintenance, conversations._store
    usage, asked = store.usage, list[float]()

    def slow() -> Any:
        asked.append(time.monotonic())
        time.sleep(0.01)
        return usage()

    monkeypatch.setattr(store, "usage", slow)
    for _ in range(3):
        upkeep.run()
    assert len(asked) == (1 if location.is_postgres else 3)
    pause_s = upkeep._usage_due - asked[0]
    assert pause_s >= 1 if location.is_postgres else pause_s < 0
    upkeep._usage_due = time.monotonic()
    upkeep.run()
    assert len(asked) == (2 if location.is_postgres else 4)
