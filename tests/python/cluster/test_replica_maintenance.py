"""What a replica does between turns: it says that it is alive, and cleans up after dead ones.

It sweeps like the only process of a store: the same tests.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.cluster import replica_fence
from sinkstream.cluster.open_shared_store import open_shared
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Identity
from sinkstream.conversations.promises import BROKEN, Promise, Promises
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.model import host_of
from tests.python.cluster.shared_stores import SharedLocation, fence_of, owners, replica
from tests.python.cluster.test_fencing import Written
from tests.python.conversations.talk import Chat, grow_old, wait_until
from tests.python.conversations.test_maintenance import (
    ERRORS,
    fails_first,
    test_a_sweep_deletes_no_more_than_is_over,
    test_sizes_are_added_up_again_after_a_hundred_times_as_long,
)

__all__ = [
    "test_a_sweep_deletes_no_more_than_is_over",
    "test_sizes_are_added_up_again_after_a_hundred_times_as_long",
]


def two_chats(model: sinkstream.Model, folder: Path, **settings: Any) -> Conversations:
    location = SharedLocation(folder, folder / "snapshots")
    conversations = replica(model, location, "one", seats=3, **settings)
    for text in "ab":
        Chat(conversations).say(text)
    return conversations


@pytest.mark.parametrize("stage", ["abandoned", "_delete_orphans"])
def test_a_stage_that_fails_keeps_none_of_the_others(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    conversations = two_chats(model, tmp_path, park_s=0.0, ttl_s=0.0)
    fence = fence_of(conversations)
    fence._swept = float("-inf")
    called: list[str] = []

    def fails() -> Any:
        called.append(stage)
        raise ERRORS[1]

    monkeypatch.setattr(fence if stage.startswith("_") else fence.owners, stage, fails)
    grow_old(conversations, 1)
    conversations._maintenance.run()
    assert called == [stage]
    assert conversations._restorer.residency.all() == []
    assert conversations._store.conversations("") == []


def seen(conversations: Conversations) -> float:
    ((found,),) = conversations._store.rows("SELECT seen FROM replicas WHERE name = 'one'")
    return float(found)


def test_a_replica_says_that_it_is_alive_while_a_snapshot_is_written(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_fence, "_BEAT_S", 0.02)
    conversations = two_chats(model, tmp_path, snapshot_tokens=0)
    states = conversations._restorer
    save, times = states.snapshots.save, []

    def slow_save(resident: Resident) -> None:
        before = seen(conversations)
        wait_until(lambda: seen(conversations) > before)
        times.append(before)
        save(resident)

    monkeypatch.setattr(states.snapshots, "save", slow_save)
    conversations._maintenance.run()
    assert len(times) == 2
    conversations.close()
    left = SqliteStore.open(tmp_path, str(Identity.of(host_of(model))), is_shared=True)
    assert left.rows("SELECT name FROM replicas") == []  # it is not announced after its end
    left.close()


def test_a_replica_that_could_not_say_that_it_is_alive_tries_again(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_fence, "_BEAT_S", 0.02)
    conversations = two_chats(model, tmp_path)
    owners = fence_of(conversations).owners
    monkeypatch.setattr(owners, "announce", fails_first(owners.announce, ERRORS[1]))
    before = seen(conversations)
    wait_until(lambda: seen(conversations) > before)


def test_a_clock_that_is_set_makes_no_replica_look_gone(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turns are not taken, and its promises not broken, before it can say that it is alive."""
    store = location.open("one")
    owners(store).announce("")
    written = Written(store)
    Promises(store, "one").make(Promise("resp_1", "ada", "{}", "[]"))
    fence = open_shared(location.address, "model", location.settings("two"))
    assert isinstance(fence, ReplicaFence)
    location.opened.append(fence.store)

    def found() -> tuple[str, str]:
        fence.look_after(nullcontext)
        owner = fence.owners.owner(written.claim.conversation)
        promise = fence.promises.find("ada", "resp_1")
        assert owner is not None
        assert promise is not None
        return owner.replica.name, promise.outcome

    assert found() == ("one", "")
    monkeypatch.setattr(fence.store, "clock", f"({fence.store.clock} + 3600)")
    assert found() == ("one", "")
    assert found() == ("one", "")
    monkeypatch.setattr(fence, "_trusted_at", float("-inf"))  # later, it has still not said so
    assert found() == ("two", BROKEN)
