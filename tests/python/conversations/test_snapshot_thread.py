"""Sessions that give up their seats next are saved before a turn would wait for that."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.residency import Resident
from tests.python.conversations.talk import (
    Chat,
    Reply,
    alone,
    ask,
    open_conversations,
    path_ids,
    user,
    wait_until,
)


class Saves:
    """Notes which turn is saved, and by which thread."""

    def __init__(self, conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        save = conversations._restorer.snapshots.save

        def noted(resident: Resident) -> None:
            assert resident.node is not None
            self.done.append((resident.node.id, threading.current_thread().name))
            assert self.may_go_on.wait(30)
            if self.error is not None:
                raise self.error
            save(resident)

        monkeypatch.setattr(conversations._restorer.snapshots, "save", noted)

    def early(self) -> list[str]:
        """Return the turns that the thread has begun to save."""
        return [node for node, thread in self.done if thread == "sinkstream-saver"]


def opened(model: sinkstream.Model, folder: Path, **settings: Any) -> Conversations:
    early_only = {"replay_tokens": 0, "saved_early": 1, "snapshot_tokens": 1 << 40}
    return open_conversations(model, folder, has_saver=True, **{**early_only, **settings})


def begun(conversations: Conversations, count: int) -> list[Reply]:
    return [ask(conversations, [user(f"the {i}")]) for i in range(count)]


def test_a_new_conversation_waits_for_no_snapshot(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = opened(model, tmp_path)
    saves, residency = Saves(conversations, monkeypatch), conversations._restorer.residency
    first, second, third = begun(conversations, 3)
    for oldest in (first, second, third):
        wait_until(lambda oldest=oldest: conversations._store.snapshot_of(oldest.node))
        # Until it is idle again, another one would leave.
        wait_until(lambda: all(one.state == "idle" for one in residency.all()))
        ask(conversations, [user("another")])
    assert {thread for _, thread in saves.done} == {"sinkstream-saver"}
    again = ask(conversations, [user("and")], previous=second.node, seed=3)
    assert again.facts.state == "loaded"
    assert again.bits == alone(model, path_ids(conversations, again.node)[:-8], 3)


def test_nothing_is_saved_while_a_seat_is_free(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = opened(model, tmp_path)
    saves = Saves(conversations, monkeypatch)
    chat = Chat(conversations)
    begun(conversations, 1)
    for _ in range(20):
        chat.say("go on")
    assert conversations._restorer.residency._next_victims(9) == []
    conversations._snapshot_thread.close()
    assert saves.done == []


@pytest.mark.parametrize("count", [1, 2])
def test_only_those_that_leave_next_are_saved_and_once(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    conversations = opened(model, tmp_path, saved_early=count)
    saves = Saves(conversations, monkeypatch)
    replies = begun(conversations, 3)
    wait_until(lambda: len(saves.done) == count)
    node = replies[2].node
    for _ in range(10):  # the one used last goes on: the others stay the next ones
        node = ask(conversations, [user("go on")], previous=node).node
    conversations._snapshot_thread.close()
    assert saves.early() == [reply.node for reply in replies[:count]]


def test_what_a_short_replay_restores_is_not_saved(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = opened(model, tmp_path, replay_tokens=10_000, saved_early=3)
    saves = Saves(conversations, monkeypatch)
    begun(conversations, 6)
    conversations._snapshot_thread.close()
    assert saves.done == []


def test_a_turn_waits_for_the_snapshot_that_is_being_written(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = opened(model, tmp_path)
    saves = Saves(conversations, monkeypatch)
    saves.may_go_on.clear()
    first = begun(conversations, 3)[0]
    wait_until(saves.early)
    found: list[Reply] = []
    more = threading.Thread(
        target=lambda: found.append(ask(conversations, [user("and")], previous=first.node, seed=4))
    )
    more.start()
    more.join(0.05)
    assert not found
    saves.may_go_on.set()
    more.join(30)
    assert found[0].facts.state == "resident"
    assert found[0].bits == alone(model, path_ids(conversations, found[0].node)[:-8], 4)


def test_a_snapshot_that_cannot_be_written_is_not_tried_again_and_its_turn_is_replayed(
    model: sinkstream.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conversations = opened(model, tmp_path)
    saves = Saves(conversations, monkeypatch)
    saves.error = OSError(28, "No space left on device")
    replies = begun(conversations, 3)
    wait_until(lambda: "a snapshot could not be written" in caplog.text)
    node = replies[2].node
    for _ in range(10):
        node = ask(conversations, [user("go on")], previous=node).node
    assert saves.early() == [replies[0].node]
    begun(conversations, 1)  # parking tries once more
    assert [one for one, _ in saves.done].count(replies[0].node) == 2
    again = ask(conversations, [user("and")], previous=replies[0].node, seed=5)
    assert again.facts.state == "replayed"
    assert again.bits == alone(model, path_ids(conversations, again.node)[:-8], 5)


def test_a_torn_snapshot_is_replayed(model: sinkstream.Model, tmp_path: Path) -> None:
    """As a power cut may leave it: it is not flushed to disk."""
    conversations = opened(model, tmp_path)
    first = begun(conversations, 3)[0]
    wait_until(lambda: conversations._store.snapshot_of(first.node))
    file = conversations._store.snapshot_of(first.node)
    assert file is not None
    begun(conversations, 3)
    with conversations._store.files.reading(file) as path:
        content = bytearray(Path(path).read_bytes())
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        Path(path).write_bytes(content)
    again = ask(conversations, [user("and")], previous=first.node, seed=6)
    assert again.facts.state == "replayed"
    assert again.bits == alone(model, path_ids(conversations, again.node)[:-8], 6)
