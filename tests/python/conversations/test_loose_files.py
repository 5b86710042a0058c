"""Files that a killed process has left are deleted, and no others."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import pytest

from sinkstream.conversations import loose_files
from sinkstream.conversations.claim import Claim, SessionMoved
from sinkstream.conversations.node import Node
from sinkstream.conversations.snapshot_files import SnapshotFolder
from sinkstream.conversations.store import Store
from sinkstream.conversations.store_error import StoreError
from tests.python.conversations.stores import StoreLocation, begun, claim_of, finish


def conversation(store: Store) -> Node:
    new = begun()
    store.begin(claim_of(new), new)
    return finish(store, new, [4], b"a")


def claim_to(node: Node, epoch: int = 1) -> Claim:
    return Claim(node.conversation, epoch)


def written(store: Store, node: Node) -> str:
    file = store.new_file(claim_to(node), node.id)
    with store.files.writing(file) as path:
        Path(path).write_bytes(b"keys and values")
    return file


def saved(store: Store, node: Node) -> str:
    file = written(store, node)
    store.add_snapshot(claim_to(node), node, file, 15)
    return file


def path_of(store: Store, file: str) -> Path:
    assert isinstance(store.files, SnapshotFolder)
    return Path(store.files.path(file))


def loose(store: Store) -> dict[str, int]:
    return dict(store._rows("SELECT file, is_doomed FROM loose_files"))


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


def test_files_of_a_deleted_conversation_are_deleted_after_a_kill(location: StoreLocation) -> None:
    one, two = location.open("one"), location.open("two")
    lose_deletions(one)
    gone, kept = conversation(one), conversation(one)
    files = [saved(one, gone), saved(one, kept)]
    foreign = path_of(one, files[0]).with_name(files[0].replace(".session", ".bak"))
    foreign.write_text("mine")
    one.delete_conversation(claim_to(gone)).result()
    assert loose(two) == {files[0]: 1}
    sweep(two)  # the first one may still be about to delete it
    assert path_of(two, files[0]).exists()
    grow_older(two, loose_files.DOOMED_S)
    sweep(two)
    assert [path_of(two, file).exists() for file in files] == [False, True]
    assert foreign.exists()
    assert loose(two) == {}
    assert two.snapshot_of(kept.id) == files[1]


@pytest.mark.parametrize("way", ["newer ones", "dropped", "branch"])
def test_every_way_to_delete_a_snapshot_leaves_a_note(location: StoreLocation, way: str) -> None:
    store = location.open("one")
    lose_deletions(store)
    first = conversation(store)
    claim = claim_to(first)
    file = saved(store, first)
    if way == "dropped":
        store.drop_snapshot(claim, first.id)
    elif way == "branch":
        store.delete_tree(claim, first.id).result()
    else:
        for number in range(2):
            new = begun(first.conversation, first.id, tokens=7)
            store.begin(claim, new)
            saved(store, finish(store, new, [4], b"%d" % number, claim))
    assert loose(store) == {file: 1}


def test_files_that_are_deleted_are_forgotten(location: StoreLocation) -> None:
    store = location.open("one")
    node = conversation(store)
    file = saved(store, node)
    store.delete_conversation(claim_to(node)).result()
    assert not path_of(store, file).exists()  # at once, not by a sweep
    assert loose(store) == {file: 1}
    store.delete_loose_files()
    assert loose(store) == {}


def test_a_file_that_is_being_written_is_left_alone(location: StoreLocation) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    file = written(one, node)
    grow_older(two, loose_files.WRITING_S - 60)
    sweep(two)
    assert path_of(two, file).exists()
    one.add_snapshot(claim_to(node), node, file, 15)
    assert two.snapshot_of(node.id) == file
    assert loose(two) == {}


def test_a_file_whose_writer_was_killed_is_deleted(location: StoreLocation) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    file = written(one, node)
    for age_s in (loose_files.WRITING_S, loose_files.DOOMED_S):
        assert path_of(two, file).exists()
        grow_older(two, age_s)
        sweep(two)
    assert not path_of(two, file).exists()
    assert loose(two) == {}


@pytest.mark.parametrize("is_gone", [False, True], ids=["doomed", "gone"])
def test_a_writer_that_is_too_late_names_no_file_that_is_deleted(
    location: StoreLocation, is_gone: bool
) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    file = written(one, node)
    for age_s in (loose_files.WRITING_S, loose_files.DOOMED_S)[: 1 + is_gone]:
        grow_older(two, age_s)
        sweep(two)
    one.add_snapshot(claim_to(node), node, file, 15)
    assert two.snapshot_of(node.id) is None
    assert not path_of(two, file).exists()


def test_a_file_that_cannot_be_deleted_is_tried_again(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = location.open("one")
    node = conversation(store)
    file = saved(store, node)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError("busy")))
        store.delete_conversation(claim_to(node)).result()
        grow_older(store, loose_files.DOOMED_S)
        sweep(store)
    assert loose(store) == {file: 1}
    sweep(store)
    assert loose(store) == {}
    assert not path_of(store, file).exists()


def test_a_file_is_deleted_only_after_the_commit(location: StoreLocation) -> None:
    """A transaction that fails keeps its rows, so it keeps their files, too."""
    store = location.open("one")
    node = conversation(store)
    file = saved(store, node)

    def fails(connection: Any) -> None:
        store._remove(connection, node.id)
        raise StoreError("store: the disk is full.")

    with pytest.raises(StoreError, match="full"):
        store._writer.submit(fails).result()
    assert store.snapshot_of(node.id) == file
    assert path_of(store, file).exists()


def test_no_file_is_begun_for_a_conversation_that_has_moved(location: StoreLocation) -> None:
    one, two = location.open("one"), location.open("two")
    node = conversation(one)
    assert two.take(node.conversation) == claim_to(node, 2)
    with pytest.raises(SessionMoved):
        one.new_file(claim_to(node), node.id)
    assert loose(two) == {}


def test_a_snapshot_that_is_added_twice_is_one(location: StoreLocation) -> None:
    """A commit whose outcome is unknown is retried."""
    store = location.open("one")
    node = conversation(store)
    file = written(store, node)
    for _ in range(2):
        store.add_snapshot(claim_to(node), node, file, 15)
    assert store.snapshot_of(node.id) == file
    assert path_of(store, file).exists()
    assert loose(store) == {}


def test_the_file_of_a_turn_that_was_deleted_meanwhile_goes_too(location: StoreLocation) -> None:
    store = location.open("one")
    first = conversation(store)
    claim = claim_to(first)
    new = begun(first.conversation, first.id, tokens=7)
    store.begin(claim, new)
    node = finish(store, new, [4], b"b", claim)
    file = written(store, node)
    store.delete_tree(claim, node.id).result()
    store.add_snapshot(claim, node, file, 15)
    assert not path_of(store, file).exists()
    assert loose(store) == {file: 1}
    assert store.ids_of(first.id) == array("i", [1, 2, 3, 4])
