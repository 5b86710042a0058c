"""Files that a killed process has left are deleted, and no others."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import pytest

from sinkstream.cluster.owners import Claim
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations import snapshot_files
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.node import Node
from sinkstream.conversations.snapshot_files import SnapshotFolder
from sinkstream.conversations.store import Store
from tests.python.cluster import shared_stores
from tests.python.cluster.shared_stores import SharedLocation, claim_of, finish, owners
from tests.python.conversations.stores import begun


def conversation(store: Store) -> Node:
    new = begun()
    claim_of(store, new).begin(new)
    return finish(store, new, [4], b"a")


def claim_to(store: Store, node: Node, epoch: int = 1) -> Claim:
    return shared_stores.claim_to(store, node.conversation, epoch)


def written(store: Store, node: Node) -> str:
    file = claim_to(store, node).new_file(node.id)
    with store.files.writing(file) as path:
        Path(path).write_bytes(b"keys and values")
    return file


def saved(store: Store, node: Node) -> str:
    file = written(store, node)
    claim_to(store, node).add_snapshot(node, file, 15)
    return file


def path_of(store: Store, file: str) -> Path:
    assert isinstance(store.files, SnapshotFolder)
    return Path(store.files.path(file))


def loose(store: Store) -> dict[str, int]:
    return dict(store.rows("SELECT file, is_doomed FROM loose_files"))


def grow_older(store: Store, by_s: float) -> None:
    """Let time pass for the files that no row names."""
    store._writer.submit(
        lambda connection: connection.execute("UPDATE loose_files SET since = since - ?", [by_s])
    ).result()


def lose_deletions(store: Store) -> None:
    """Delete no file from here on, as if the process were killed after each commit."""
    store._writer.on_freed = lambda file: None


def sweep(store: Store) -> None:
    """Do what upkeep does, twice: the second time, it forgets deleted files."""
    for _ in range(2):
        store.delete_loose_files()


def test_files_of_a_deleted_conversation_are_deleted_after_a_kill(location: SharedLocation) -> None:
    one, two = location.open("one"), location.open("two")
    lose_deletions(one)
    gone, kept = conversation(one), conversation(one)
    files = [saved(one, gone), saved(one, kept)]
    foreign = path_of(one, files[0]).with_name(files[0].replace(".session", ".bak"))
    foreign.write_text("mine")
    claim_to(one, gone).delete_all().result()
    assert loose(two) == {files[0]: 1}
    sweep(two)  # the first one may still be about to delete it
    assert path_of(two, files[0]).exists()
    grow_older(two, snapshot_files.DOOMED_S)
    sweep(two)
    assert [path_of(two, file).exists() for file in files] == [False, True]
    assert foreign.exists()
    assert loose(two) == {}
    assert two.snapshot_of(kept.id) == files[1]


@pytest.mark.parametrize("way", ["newer ones", "dropped", "branch"])
def test_every_way_to_delete_a_snapshot_leaves_a_note(location: SharedLocation, way: str) -> None:
    store = location.open("one")
    lose_deletions(store)
    first = conversation(store)
    claim = claim_to(store, first)
    file = saved(store, first)
    if way == "dropped":
        claim.drop_snapshot(first.id)
    elif way == "branch":
        claim.delete_tree(first.id).result()
    else:
        for number in range(2):
            new = begun(first.conversation, first.id, tokens=7)
            claim.begin(new)
            saved(store, finish(store, new, [4], b"%d" % number, claim))
    assert loose(store) == {file: 1}


def test_files_that_are_deleted_are_forgotten(location: SharedLocation) -> None:
    store = location.open("one")
    node = conversation(store)
    file = saved(store, node)
    claim_to(store, node).delete_all().result()
    assert not path_of(store, file).exists()  # at once, not by a sweep
    assert loose(store) == {file: 1}
    store.delete_loose_files()
    assert loose(store) == {}


def test_a_file_that_is_being_written_is_left_alone(location: SharedLocation) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    file = written(one, node)
    grow_older(two, snapshot_files.WRITING_S - 60)
    sweep(two)
    assert path_of(two, file).exists()
    claim_to(one, node).add_snapshot(node, file, 15)
    assert two.snapshot_of(node.id) == file
    assert loose(two) == {}


def test_a_file_whose_writer_was_killed_is_deleted(location: SharedLocation) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    file = written(one, node)
    for age_s in (snapshot_files.WRITING_S, snapshot_files.DOOMED_S):
        assert path_of(two, file).exists()
        grow_older(two, age_s)
        sweep(two)
    assert not path_of(two, file).exists()
    assert loose(two) == {}


@pytest.mark.parametrize("is_gone", [False, True], ids=["doomed", "gone"])
def test_a_writer_that_is_too_late_names_no_file_that_is_deleted(
    location: SharedLocation, is_gone: bool
) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    file = written(one, node)
    for age_s in (snapshot_files.WRITING_S, snapshot_files.DOOMED_S)[: 1 + is_gone]:
        grow_older(two, age_s)
        sweep(two)
    claim_to(one, node).add_snapshot(node, file, 15)
    assert two.snapshot_of(node.id) is None
    assert not path_of(two, file).exists()


def test_a_file_that_cannot_be_deleted_is_tried_again(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = location.open("one")
    node = conversation(store)
    file = saved(store, node)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError("busy")))
        claim_to(store, node).delete_all().result()
        grow_older(store, snapshot_files.DOOMED_S)
        sweep(store)
    assert loose(store) == {file: 1}
    sweep(store)
    assert loose(store) == {}
    assert not path_of(store, file).exists()


def test_a_file_is_deleted_only_after_the_commit(location: SharedLocation) -> None:
    """A transaction that fails keeps its rows, so it keeps their files, too."""
    store = location.open("one")
    node = conversation(store)
    file = saved(store, node)

    def fails(connection: Any) -> None:
        store.remove_snapshot(connection, node.id)
        raise StoreError("store: the disk is full.")

    with pytest.raises(StoreError, match="full"):
        store._writer.submit(fails).result()
    assert store.snapshot_of(node.id) == file
    assert path_of(store, file).exists()


def test_no_file_is_begun_for_a_conversation_that_has_moved(location: SharedLocation) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    assert owners(two).take(node.conversation) == claim_to(two, node, 2)
    with pytest.raises(SessionMoved):
        claim_to(one, node).new_file(node.id)
    assert loose(two) == {}


def test_a_snapshot_that_is_added_twice_is_one(location: SharedLocation) -> None:
    """A commit whose outcome is unknown is retried."""
    store = location.open("one")
    node = conversation(store)
    file = written(store, node)
    for _ in range(2):
        claim_to(store, node).add_snapshot(node, file, 15)
    assert store.snapshot_of(node.id) == file
    assert path_of(store, file).exists()
    assert loose(store) == {}


def test_the_file_of_a_turn_that_was_deleted_meanwhile_goes_too(location: SharedLocation) -> None:
    store = location.open("one")
    first = conversation(store)
    claim = claim_to(store, first)
    new = begun(first.conversation, first.id, tokens=7)
    claim.begin(new)
    node = finish(store, new, [4], b"b", claim)
    file = written(store, node)
    claim.delete_tree(node.id).result()
    claim.add_snapshot(node, file, 15)
    assert not path_of(store, file).exists()
    assert loose(store) == {file: 1}
    assert store.ids_of(first.id) == array("i", [1, 2, 3, 4])


def test_replicas_of_a_store_find_each_others_snapshots(location: SharedLocation) -> None:
    one, two = location.open("one"), location.open("two")
    file = saved(one, conversation(one))
    with two.files.reading(file) as found:
        assert found == str(path_of(one, file))


def test_stores_that_share_a_folder_keep_each_others_snapshots(tmp_path: Path) -> None:
    """Also when orphans are deleted."""
    locations = [SharedLocation(tmp_path / name, tmp_path / "shared") for name in ("a", "b")]
    stores = [location.open("one") for location in locations]
    paths = [path_of(store, saved(store, conversation(store))) for store in stores]
    for path in paths:
        os.utime(path, (1e9, 1e9))
    for store in stores:
        ReplicaFence(owners(store))._delete_orphans()
    assert all(path.exists() for path in paths)
    for location in locations:
        location.close()
