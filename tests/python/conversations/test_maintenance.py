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
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.turns import TurnRequest
from tests.python.conversations.stores import StoreLocation
from tests.python.conversations.talk import (
    STILL,
    Chat,
    ask,
    grow_old,
    open_conversations,
    options,
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
    grow_old(conversations, 1)
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
    grow_old(conversations, 1)
    upkeep.run()
    assert len(conversations._store.conversations("")) == 1


@pytest.mark.parametrize("stage", ["delete_loose_files", "usage"])
def test_a_stage_that_fails_keeps_none_of_the_others(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    conversations = two_chats(model, tmp_path, park_s=0.0, ttl_s=0.0)
    grow_old(conversations, 1)
    monkeypatch.setattr(conversations._store, stage, always(ERRORS[1]))
    conversations._maintenance.run()
    assert conversations._restorer.residency.all() == []
    assert conversations._store.conversations("") == []
    monkeypatch.undo()


# ---- single turns --------------------------------------------------------------------------------


def test_a_single_turn_that_was_never_continued_is_not_listed_and_goes_early(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    """Such as the title of a chat. A turn with a name, a response or a second turn is a chat."""
    conversations = open_conversations(model, tmp_path, ttl_s=1e6, single_ttl_s=100)
    chat = Chat(conversations)
    single = chat.say("a title").facts.session
    named = ask(conversations, [user("b")], session_key="mine").facts.session
    response = ask(conversations, [user("c")], record="{}").facts.session
    assert [one.id for one in conversations.conversations("", 9)] == [response, named]
    chat.say("no, a chat")
    assert [one.id for one in conversations.conversations("", 9)] == [single, response, named]
    other = ask(conversations, [user("d")]).facts.session
    grow_old(conversations, 10)
    conversations._maintenance.run()
    assert other in dict(conversations._store.conversations(""))
    grow_old(conversations, 100)
    conversations._maintenance.run()
    left = [name for name, _ in conversations._store.conversations("")]
    assert left == [single, response, named]


# ---- the sweep by size ---------------------------------------------------------------------------


def filled(
    model: sinkstream.Model, location: StoreLocation, count: int, **limits: int
) -> Conversations:
    settings = {"maintenance_s": STILL, "saved_early": 0, "snapshot_tokens": 1 << 40}
    conversations = location.conversations(model, **settings, **limits)
    for i in range(count):
        ask(conversations, [user(f"{i}")], seed=i, record="x" * 20_000)
    return conversations


def test_a_sweep_deletes_no_more_than_is_over(
    model: sinkstream.Model, location: StoreLocation
) -> None:
    conversations = filled(model, location, 6)
    store = conversations._store
    newest = [name for name, _ in store.conversations("")][:3]
    before = store.usage().transcripts
    first, second, third = (size for _, _, size in store.conversations_by_use("")[:3])
    over = first + second + third // 2  # whole pages are freed, so half of one is enough to tell
    conversations._maintenance._settings = Settings(max_bytes=before - over)
    conversations._maintenance.run()
    assert [name for name, _ in store.conversations("")] == newest
    assert store.usage().transcripts <= before - over


def test_sizes_are_added_up_again_after_a_hundred_times_as_long(
    model: sinkstream.Model, location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = filled(model, location, 1, max_bytes=1 << 40)
    upkeep, store = conversations._maintenance, conversations._store
    usage, asked = store.usage, list[float]()

    def slow() -> Any:
        asked.append(time.monotonic())
        time.sleep(0.01)
        return usage()

    monkeypatch.setattr(store, "usage", slow)
    for _ in range(3):
        upkeep.run()
    assert len(asked) == 1
    assert upkeep._usage_due - asked[0] >= 1
    upkeep._usage_due = time.monotonic()
    upkeep.run()
    assert len(asked) == 2


# ---- a store that is gone ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_database_that_is_gone_is_noticed(
    model: sinkstream.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """By the next sweep: nothing is acknowledged that would be lost. Put back, it goes on."""
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    chat.say("One")
    running = conversations.begin(TurnRequest("", [user("a")], options(1, 30)))
    database, away = tmp_path / "turns.sqlite", tmp_path / "away"
    database.rename(away)
    if how == "replaced":
        database.write_bytes(away.read_bytes())
    with caplog.at_level(logging.ERROR, "sinkstream"):
        for _ in range(2):
            conversations._maintenance.run()
    assert caplog.text.count(f"{database} must stay where it is") == 1
    assert conversations.trouble is not None
    with pytest.raises(StoreError, match="was deleted or replaced"):
        chat.branch(chat.messages).say("Two")
    running.stream.close()
    with pytest.raises(StoreError, match="was deleted or replaced"):
        running.end()
    away.rename(database)
    conversations._maintenance.run()
    assert conversations.trouble is None
    assert chat.say("Two").facts.state in ("resident", "replayed")
