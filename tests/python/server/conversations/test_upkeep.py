"""Work between turns: what fails keeps nothing else from being done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.server.conversations import heartbeat
from sinkstream.server.conversations.claim import SessionMoved
from sinkstream.server.conversations.conversations import Conversations, identity_of
from sinkstream.server.conversations.residency import Resident
from sinkstream.server.conversations.sqlite_store import SqliteStore
from sinkstream.server.conversations.store_error import StoreError
from tests.python.server.conversations.talk import Chat, open_conversations


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
    conversations = open_conversations(model, folder, replica="one", **settings)
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
    states = conversations._states
    monkeypatch.setattr(states, "save", fails_first(states.save, error))
    with caplog.at_level(logging.WARNING, "sinkstream"):
        conversations._upkeep.run()
    assert len(list(conversations._store.oldest_snapshots())) == 1
    assert [one.state for one in states.residency.all()] == ["idle", "idle"]
    assert caplog.text.count("upkeep failed at 1 places") == (error is not ERRORS[-1])
    conversations._upkeep.run()
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
    monkeypatch.setattr(conversations._states, "save", always(ERRORS[0]))
    time.sleep(0.01)
    with caplog.at_level(logging.WARNING, "sinkstream"):
        conversations._upkeep.run()
    assert conversations._states.residency.all() == []
    assert conversations._store.conversations("") == []
    assert caplog.text.count("upkeep failed at 2 places") == 1


@pytest.mark.parametrize("settings", [{"ttl_s": 0.0}, {"max_conversations": 0}, {"max_bytes": 0}])
def test_a_conversation_that_cannot_be_deleted_keeps_none_of_the_others(
    model: sinkstream.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    conversations = two_chats(model, tmp_path, **settings)
    upkeep = conversations._upkeep
    monkeypatch.setattr(upkeep, "_delete", fails_first(upkeep._delete, ERRORS[1]))
    time.sleep(0.01)
    upkeep.run()
    assert len(conversations._store.conversations("")) == 1


@pytest.mark.parametrize("stage", ["left_behind", "delete_orphans", "usage"])
def test_a_stage_that_fails_keeps_none_of_the_others(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    conversations = two_chats(model, tmp_path, park_s=0.0, ttl_s=0.0)
    conversations._upkeep._swept = float("-inf")
    monkeypatch.setattr(conversations._store, stage, always(ERRORS[1]))
    time.sleep(0.01)
    conversations._upkeep.run()
    assert conversations._states.residency.all() == []
    assert conversations._store.conversations("") == []
    monkeypatch.undo()


def seen(conversations: Conversations) -> float:
    ((found,),) = conversations._store._rows("SELECT seen FROM replicas WHERE name = 'one'")
    return float(found)


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_replica_says_that_it_is_alive_while_a_snapshot_is_written(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_S", 0.02)
    conversations = two_chats(model, tmp_path, snapshot_tokens=0)
    states = conversations._states
    save, times = states.save, []

    def slow_save(resident: Resident) -> None:
        before = seen(conversations)
        wait_until(lambda: seen(conversations) > before)
        times.append(before)
        save(resident)

    monkeypatch.setattr(states, "save", slow_save)
    conversations._upkeep.run()
    assert len(times) == 2
    conversations.close()
    left = SqliteStore.open(tmp_path, identity_of(model), replica="two")
    assert left._rows("SELECT name FROM replicas") == []  # it is not announced after its end
    left.close()


def test_a_replica_that_could_not_say_that_it_is_alive_tries_again(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_S", 0.02)
    conversations = two_chats(model, tmp_path)
    store = conversations._store
    monkeypatch.setattr(store, "announce", fails_first(store.announce, ERRORS[1]))
    before = seen(conversations)
    wait_until(lambda: seen(conversations) > before)
