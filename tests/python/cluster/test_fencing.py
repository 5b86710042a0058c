"""Who may write: of two replicas on one store, only the one that took a conversation last."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sinkstream.cluster import owners as owners_module
from sinkstream.cluster.owners import Claim, Replica
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.node import Node, new_id
from sinkstream.conversations.snapshot_files import new_file_name
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.conversations.store import Store
from sinkstream.server.pool import THREADS, Pool
from tests.python.cluster.shared_stores import (
    SharedLocation,
    claim_of,
    claim_to,
    claimed,
    contents,
    finish,
    owners,
)
from tests.python.conversations import stores
from tests.python.conversations.stores import begun, ended


class Written:
    """A conversation of one turn with a snapshot, and a second turn that is running."""

    def __init__(self, store: Store) -> None:
        self.store = store
        first = begun()
        self.claim = claim_of(store, first)
        self.claim.begin(first)
        self.first = finish(store, first, [4], b"a")
        self.snapshot(self.claim)
        self.running = begun(first.conversation, first.id, tokens=7)
        self.claim.begin(self.running)
        assert self.claim.try_add_part(self.running.id, 0, array("i", [8, 9]), "part")
        self.claim.forget(new_id("resp")).result()  # what was queued before is written now

    def snapshot(self, claim: Claim) -> None:
        file = claim.new_file(self.first.id)
        with self.store.files.writing(file) as path:
            Path(path).write_bytes(b"keys and values")
        claim.add_snapshot(self.first, file, 15)

    @property
    def node(self) -> Node:
        return ended(self.running, [8, 9, 10], b"b")


def part(store: Store, written: Written, claim: Claim) -> None:
    done: list[Future[Any]] = []
    queued = claim.queued
    claim.queued = lambda one: done.append(one) or queued(one)  # type: ignore
    assert claim.try_add_part(written.running.id, 1, array("i", [10]), "late")
    claim.queued = queued  # type: ignore[method-assign]
    done[0].result()


def begin(store: Store, written: Written, claim: Claim) -> None:
    new = begun(claim.conversation, written.first.id, tokens=7)
    claim.begin(new)
    finish(store, new, [1], b"c", claim)


def commit(store: Store, written: Written, claim: Claim) -> None:
    claim.finish(written.node, 1, array("i", [10]), "late").result()


WRITES: dict[str, Callable[[Store, Written, Claim], Any]] = {
    "begin": begin,
    "part": part,
    "commit": commit,
    "forget": lambda store, written, claim: claim.forget(written.running.id).result(),
    "note": lambda store, written, claim: claim.note(written.first.id, "late").result(),
    "rename": lambda store, written, claim: claim.rename("late").result(),
    "delete a turn": lambda store, written, claim: claim.delete_tree(written.first.id).result(),
    "delete": lambda store, written, claim: claim.delete_all().result(),
    "snapshot": lambda store, written, claim: written.snapshot(claim),
    "drop a snapshot": lambda store, written, claim: claim.drop_snapshot(written.first.id),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_with_an_old_claim_changes_nothing(location: SharedLocation, write: str) -> None:
    old, new = location.open("a"), location.open("b")
    written = Written(old)
    claim = owners(new).take(written.claim.conversation)
    assert claim == claimed(written.claim.conversation, 2)
    before = contents(new)
    lost: list[Claim] = []
    owners(old).on_lost = lost.append
    with pytest.raises(SessionMoved, match="moved to another replica"):
        WRITES[write](old, written, written.claim)
    assert contents(new) == before
    files = [path.name for path in location.snapshots.rglob("*") if path.is_file()]
    assert files == [new.snapshot_of(written.first.id)]
    old.close()  # all that was queued has been tried
    assert set(lost) == {written.claim}


@pytest.mark.parametrize("write", WRITES)
def test_the_same_write_with_the_latest_claim_changes_something(
    location: SharedLocation, write: str
) -> None:
    old, new = location.open("a"), location.open("b")
    written = Written(old)
    before = contents(new)
    WRITES[write](old, written, written.claim)
    assert contents(new) != before


def test_taking_closes_the_turns_that_the_owner_before_had_not_finished(
    location: SharedLocation,
) -> None:
    old, new = location.open("a"), location.open("b")
    written = Written(old)
    empty = begun(written.claim.conversation, written.first.id, tokens=7)
    written.claim.begin(empty)
    written.claim.note(written.first.id, "").result()
    assert new.node(written.running.id) is None
    claim = owners(new).take(written.claim.conversation)
    assert claim is not None
    node = new.node(written.running.id)
    assert node is not None
    assert (node.finish_reason, node.tokens, node.last_id) == ("interrupted", 9, 9)
    assert new.unfinished_session("ada", empty.id) is None
    assert [one.id for one in new.nodes_of(claim.conversation)] == [written.first.id, node.id]
    owner = owners(new).owner(claim.conversation)
    assert owner is not None
    assert (owner.replica.name, owner.epoch) == ("b", 2)


def test_a_conversation_of_which_nothing_is_left_cannot_be_taken(location: SharedLocation) -> None:
    old, new = location.open("a"), location.open("b")
    first = begun()
    claim_of(old, first).begin(first)
    claim_of(old, first).forget(new_id("resp")).result()
    assert new.session_of(first.id) == first.conversation
    assert owners(new).take(first.conversation) is None
    assert owners(new).owner(first.conversation) is None
    assert owners(new).take("sess_none") is None
    lost: list[Claim] = []
    owners(old).on_lost = lost.append
    with pytest.raises(SessionMoved):
        finish(old, first, [4], b"a")
    assert lost == [claim_of(old, first)]
    assert contents(new)["nodes"] == []


@pytest.mark.parametrize("write", [each for each in WRITES if each != "begin"])
def test_a_conversation_that_another_replica_deleted_is_lost(
    location: SharedLocation, write: str
) -> None:
    old, new = location.open("a"), location.open("b")
    written = Written(old)
    claim = owners(new).take(written.claim.conversation)
    assert claim is not None
    claim.delete_all().result()
    lost: list[Claim] = []
    owners(old).on_lost = lost.append
    with pytest.raises(SessionMoved):
        WRITES[write](old, written, written.claim)
    assert lost == [written.claim]
    assert [path for path in location.snapshots.rglob("*") if path.is_file()] == []


def test_a_conversation_whose_beginning_was_not_written_is_not_lost(tmp_path: Path) -> None:
    """Sending the request again does not help against a full disk."""
    location = SharedLocation(tmp_path / "store", tmp_path / "snapshots")
    store = location.open("a")
    lost: list[Claim] = []
    owners(store).on_lost = lost.append
    for end in (
        lambda claim, first: finish(store, replace(first, tokens=3), [4], b"a", claim),
        lambda claim, first: claim.forget(first.id).result(),
    ):
        first = begun(tokens=None)
        claim = claim_of(store, first)
        claim.begin(first)
        with pytest.raises(StoreError, match="was not written, so none of it"):
            end(claim, first)
    assert lost == []
    location.close()


@pytest.mark.parametrize("when", ["submitted", "written"])
def test_the_file_of_a_snapshot_that_cannot_be_recorded_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    location = SharedLocation(tmp_path / "store", tmp_path / "snapshots")
    store = location.open("a")
    written = Written(store)
    before = {path for path in location.snapshots.rglob("*") if path.is_file()}

    def fails(*_: object, **__: object) -> None:
        raise StoreError("store: the disk is full.")

    if when == "submitted":
        monkeypatch.setattr(store._writer, "submit", fails)
    else:
        monkeypatch.setattr(store, "remove_snapshot", fails)
    with pytest.raises(StoreError, match="the disk is full"):
        written.snapshot(written.claim)
    assert {path for path in location.snapshots.rglob("*") if path.is_file()} == before
    monkeypatch.undo()
    location.close()


def test_the_last_two_snapshots_stay_whatever_the_clocks_say(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a host, and of the store."""
    now = 2e9
    monkeypatch.setattr(time, "time", lambda: now)
    one, two = location.open("a"), location.open("b")
    claim, parent, tokens = claim_of(one, begun()), None, 3
    written: list[str] = []
    for number, store in enumerate([one, one, two, one, two]):
        if store is two:
            now -= 3600
            monkeypatch.setattr(store, "clock", f"{1e9 - number:.1f}")
        else:
            now += 3600
        new = begun(claim.conversation, parent, tokens=tokens)
        if number > 0:
            taken = owners(store).take(claim.conversation)
            assert taken is not None
            claim = taken
        claim.begin(new)
        node = finish(store, new, [4], b"%d" % number, claim)
        parent, tokens = node.id, node.tokens + 3
        file = claim.new_file(node.id)
        with store.files.writing(file) as path:
            Path(path).write_bytes(b"keys and values")
        claim.add_snapshot(node, file, 15)
        written.append(node.id)
        kept = [node_id for node_id, _ in store.oldest_snapshots()]
        assert kept == written[-2:]


def test_a_transaction_that_is_repeated_changes_nothing(location: SharedLocation) -> None:
    """After a commit whose outcome is unknown, the same job runs again."""
    store = location.open("a")
    jobs: list[Any] = []
    submit = store._writer.submit

    def noted(job: Any) -> Any:
        jobs.append(job)
        return submit(job)

    store._writer.submit = noted  # type: ignore[method-assign]
    written = Written(store)
    commit(store, written, written.claim)
    written.snapshot(written.claim)
    before = contents(store)
    for job in jobs:
        submit(job).result()
    after = contents(store)
    for table in ("conversations", "snapshots"):  # when they were used, made
        assert [row[0] for row in after.pop(table)] == [row[0] for row in before.pop(table)]
    assert after == before


# ---- taking and asking ---------------------------------------------------------------------------


def owned(store: Store, is_running: Callable[[str], bool] = lambda session: False) -> ReplicaFence:
    fence = ReplicaFence(owners(store))
    fence._runs = is_running  # type: ignore[method-assign]
    return fence


def session_of_one_turn(store: Store) -> str:
    new = begun()
    claim_of(store, new).begin(new)
    finish(store, new, [4], b"a")
    return new.conversation


def test_a_living_owner_is_asked_before_its_conversation_is_taken(location: SharedLocation) -> None:
    old, new = location.open("a"), location.open("b")
    owners(old).announce("10.0.0.1:80")
    session = session_of_one_turn(old)
    asked: list[tuple[Replica, str]] = []
    ownership = owned(new)
    ownership.ask = lambda replica, session: bool(asked.append((replica, session)))
    assert ownership.own(session) == claimed(session, 2)
    assert asked == [(Replica("a", "10.0.0.1:80"), session)]
    assert ownership.own(session) == claimed(session, 2)  # it is held now
    assert len(asked) == 1


@pytest.mark.parametrize("why", ["gone", "left", "given up", "its own"])
def test_no_other_replica_is_asked(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    old, new = location.open("a"), location.open("b")
    session = session_of_one_turn(old)
    if why == "gone":
        monkeypatch.setattr(owners_module, "GONE_S", -1.0)
    elif why == "left":
        owners(old).leave()
    elif why == "given up":
        owners(old).give_up([claim_to(old, session)])
    else:
        new = old
    ownership = owned(new)
    ownership.ask = lambda replica, session: pytest.fail("asked")
    assert ownership.own(session) == claimed(session, 2)


def test_who_waits_for_an_owner_is_not_at_work(location: SharedLocation) -> None:
    """Then it takes no thread of the server's pool from others."""
    old, new = location.open("a"), location.open("b")
    owners(old).announce("10.0.0.1:80")
    session = session_of_one_turn(old)
    ownership = owned(new)
    waits: list[bool] = []
    is_waiting = False

    @contextmanager
    def waiting(cancel: Callable[[], object] | None = None) -> Iterator[None]:
        nonlocal is_waiting
        is_waiting = True
        yield
        is_waiting = False

    def ask(replica: Replica, session: str) -> bool:
        waits.append(is_waiting)
        return True

    ownership.waiting, ownership.ask = waiting, ask
    assert ownership.own(session) == claimed(session, 2)
    assert waits == [True]
    assert not is_waiting


def test_an_owner_that_cannot_be_asked_loses_its_conversation(location: SharedLocation) -> None:
    old, new = location.open("a"), location.open("b")
    session = session_of_one_turn(old)

    def unreachable(replica: Replica, session: str) -> bool:
        raise ConnectionRefusedError

    ownership = owned(new)
    ownership.ask = unreachable
    assert ownership.own(session) == claimed(session, 2)


def test_two_threads_take_a_conversation_once(tmp_path: Path) -> None:
    location = SharedLocation(tmp_path / "store", tmp_path / "snapshots")
    session = session_of_one_turn(location.open("a"))
    ownership = owned(location.open("b"))
    claims: list[Claim | None] = []
    threads = [
        threading.Thread(target=lambda: claims.append(ownership.own(session))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    location.close()
    assert claims == [claimed(session, 2)] * 8


def test_what_takes_a_conversation_does_not_keep_its_turns_from_ending(
    location: SharedLocation,
) -> None:
    """All threads that work in the pool wait for it, and its turns are ended in the pool."""
    store = location.open("a")
    session = session_of_one_turn(store)
    ownership = owned(store)
    assert ownership.own(session) == claimed(session, 2)

    async def run() -> None:
        pool = Pool()
        ownership.waiting = pool.waiting
        is_ending, has_ended = threading.Event(), threading.Event()

        def end_turns() -> bool:
            is_ending.set()
            return has_ended.wait(10)

        giving = asyncio.create_task(asyncio.to_thread(ownership.give_up, session, end_turns))
        await asyncio.to_thread(is_ending.wait)
        taking = [pool.submit(lambda: ownership.own(session)) for _ in range(THREADS)]
        await asyncio.sleep(0.05)
        await pool.run(has_ended.set)
        assert await giving
        assert await asyncio.gather(*taking) == [claimed(session, 3)] * THREADS
        await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_a_claim_of_a_running_turn_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are forgotten, and taken again without asking."""
    monkeypatch.setattr("sinkstream.cluster.replica_fence._MOST", 3)
    location = SharedLocation(tmp_path / "store", tmp_path / "snapshots")
    ownership = owned(location.open("a"), lambda session: session == "sess_0")
    for number in range(10):
        ownership.begin(f"sess_{number}")
    location.close()
    assert sorted(ownership._held) == ["sess_0", "sess_8", "sess_9"]


def test_giving_up_waits_until_turns_have_ended(location: SharedLocation) -> None:
    store = location.open("a")
    session = session_of_one_turn(store)
    ownership = owned(store)
    claim = ownership.own(session)
    assert not ownership.give_up(session, lambda: False)
    assert ownership.held(session) == claim
    is_ending, ended = threading.Event(), list[int]()

    def end_turns() -> bool:
        is_ending.set()
        time.sleep(0.05)
        ended.append(1)
        return True

    giving = threading.Thread(target=lambda: ownership.give_up(session, end_turns))
    giving.start()
    assert is_ending.wait(30)
    assert ownership.own(session) == claimed(session, 3)  # afterwards, not in between
    assert ended == [1]
    giving.join()
    owner = owners(store).owner(session)
    assert owner is not None
    assert owner.replica.name == "a"


def test_a_sweep_leaves_what_a_living_replica_owns(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = location.open("a"), location.open("b")
    session = session_of_one_turn(old)
    assert owned(new).adopt(session) is None
    owner = owners(new).owner(session)
    assert owner is not None
    assert (owner.replica.name, owner.epoch, owner.is_alive) == ("a", 1, True)
    monkeypatch.setattr(owners_module, "GONE_S", -1.0)
    assert owned(new).adopt(session) == claimed(session, 2)


def test_a_conversation_used_since_it_was_chosen_is_not_deleted(location: SharedLocation) -> None:
    store = location.open("a")
    session = session_of_one_turn(store)
    ((_, tick),) = store.expired_conversations(1e12)
    new = begun(session, store.nodes_of(session)[0].id, tokens=7)
    claim_to(store, session).begin(new)
    assert claim_to(store, session).delete_all(tick).result() is False
    finish(store, new, [4], b"b")
    assert len(store.nodes_of(session)) == 2
    ((_, tick),) = store.expired_conversations(1e12)
    assert claim_to(store, session).delete_all(tick).result() is True
    assert contents(store)["owners"] == []


# ---- several processes on one folder -------------------------------------------------------------


def test_replicas_share_a_folder_but_not_with_a_server_that_has_no_name(tmp_path: Path) -> None:
    first = SqliteStore.open(tmp_path, "model", is_shared=True)
    second = SqliteStore.open(tmp_path, "model", is_shared=True)
    with pytest.raises(
        StoreError, match=r"one server at a time.* or give each server its own `replica`"
    ):
        SqliteStore.open(tmp_path, "model")
    new = begun()
    stores.writer_of(first, new).begin(new)
    node = stores.finish(first, new, [4], b"a")
    assert second.node(new.id) == node
    first.close()
    second.close()
    alone = SqliteStore.open(tmp_path, "model")
    with pytest.raises(StoreError, match="one server at a time"):
        SqliteStore.open(tmp_path, "model", is_shared=True)
    alone.close()


def test_files_without_a_row_are_deleted_once_they_are_old(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = location.open("a")
    written = Written(store)
    kept = store.snapshot_of(written.first.id)
    with store.files.writing(new_file_name(written.running.id)) as orphan:
        Path(orphan).write_bytes(b"of a replica that was killed")
    fence = owned(store)
    fence._delete_orphans()
    assert Path(orphan).exists()
    monkeypatch.setattr("sinkstream.cluster.replica_fence._ORPHANS_S", 0)
    fence._delete_orphans()
    assert [path.name for path in location.snapshots.rglob("*.session")] == [kept]


def test_all_is_given_up_but_what_is_running(location: SharedLocation) -> None:
    store = location.open("a")
    sessions = [session_of_one_turn(store) for _ in range(3)]
    ownership = owned(store, lambda session: session == sessions[1])
    claims = [ownership.own(session) for session in sessions]
    ownership.give_up_idle()
    found = [owners(store).owner(session) for session in sessions]
    assert [owner.replica.name for owner in found if owner] == ["", "a", ""]
    assert [ownership.held(session) for session in sessions] == [None, claims[1], None]


def test_a_conversation_that_is_just_taken_is_not_given_up(location: SharedLocation) -> None:
    store = location.open("a")
    session = session_of_one_turn(store)
    ownership = owned(store)
    ownership.own(session)
    claim = owners(store).take(session)  # by another thread, which has not noted it yet
    assert claim is not None
    ownership.give_up_idle()
    owner = owners(store).owner(session)
    assert owner is not None
    assert (owner.replica.name, owner.epoch) == ("a", claim.epoch)


def test_opening_a_shared_store_leaves_the_turns_of_others(location: SharedLocation) -> None:
    written = Written(location.open("a"))
    other = location.open("b")
    assert other.unfinished_session("ada", written.running.id) == written.claim.conversation
    assert other.snapshot_of(written.first.id) is not None
    assert WRITES["commit"](written.store, written, written.claim) is None


def test_many_processes_create_one_store(location: SharedLocation) -> None:
    """All at once: each finds the same secret."""
    opened: list[Store] = []
    threads = [
        threading.Thread(target=lambda name=name: opened.append(location.open(f"r{name}")))
        for name in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6
    assert len({store.secret for store in opened}) == 1
