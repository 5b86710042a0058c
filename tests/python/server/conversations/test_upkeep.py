"""Work between turns: what fails keeps nothing else from being done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.server.conversations.claim import SessionMoved
from sinkstream.server.conversations.conversations import Conversations
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


@pytest.mark.parametrize("stage", ["announce", "left_behind", "delete_orphans", "usage"])
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
