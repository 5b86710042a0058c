"""A folder of snapshots: what is not a snapshot of its store is never deleted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import sinkstream
from sinkstream.conversations.node import new_id
from sinkstream.conversations.open_store import Settings, open_folder
from sinkstream.conversations.snapshot_files import SnapshotFolder, new_file_name
from sinkstream.conversations.store import Store
from tests.python.conversations.stores import begun, finish, writer_of
from tests.python.conversations.talk import Chat, open_conversations


def written(folder: SnapshotFolder, name: str) -> Path:
    with folder.writing(name) as path:
        Path(path).write_bytes(b"keys and values")
    return Path(path)


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def foreign_files(folder: Path) -> set[Path]:
    """Write what a user may have in a folder, and what only looks like a snapshot."""
    name = new_file_name(f"resp_ab{'0' * 30}")
    found = {
        folder / each
        for each in (
            "thesis.txt", ".profile", "photos/2024/a.jpg", "ab/notes.session", "ab/.hidden",
            "ab/resp_1.session", f"cd/{name}", f"deep/ab/{name}", name, f"ab/{name}.bak",
            f"ab/.{name}.part", f"AB/{name}",
        )
    }  # fmt: skip
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    return found


def store_of_one_snapshot(folder: Path, snapshots: Path) -> tuple[Store, Path]:
    store = open_folder(folder, "model", Settings(snapshots=str(snapshots))).store
    new = begun()
    writer_of(store, new).begin(new)
    node = finish(store, new, [4], b"a")
    file = writer_of(store, new).new_file(node.id)
    before = files_below(snapshots)
    with store.files.writing(file) as path:
        Path(path).write_bytes(b"keys and values")
    writer_of(store, new).add_snapshot(node, file, 15)
    (found,) = files_below(snapshots) - before
    return store, found


def test_only_snapshots_are_deleted(tmp_path: Path) -> None:
    foreign = foreign_files(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    folder = SnapshotFolder(tmp_path)
    kept, other = (written(folder, new_file_name(new_id("resp"))) for _ in range(2))
    name = new_file_name(new_id("resp"))
    abandoned = written(folder, name).with_name(f".{name[:40]}.sinkstream-a1_b2c3d.part")
    Path(folder.path(name)).rename(abandoned)
    assert {kept, other, abandoned} < files_below(tmp_path)
    folder.delete_others([kept.name])
    assert files_below(tmp_path) == {*foreign, kept}


def test_a_folder_that_is_a_link_is_not_searched(tmp_path: Path) -> None:
    elsewhere = written(SnapshotFolder(tmp_path / "one"), new_file_name(new_id("resp")))
    folder = SnapshotFolder(tmp_path / "two")
    (tmp_path / "two" / elsewhere.parent.name).symlink_to(elsewhere.parent)
    folder.delete_others([])
    assert elsewhere.exists()


def test_only_old_snapshots_are_deleted(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path)
    old, new = (written(folder, new_file_name(new_id("resp"))) for _ in range(2))
    os.utime(old, (1e9, 1e9))
    folder.delete_others([], older_than_s=3600)
    assert files_below(tmp_path) == {new}


def test_stores_that_share_a_folder_leave_each_others_snapshots(tmp_path: Path) -> None:
    """Also what else is in the folder."""
    shared = tmp_path / "shared"
    foreign = foreign_files(shared)
    one, of_one = store_of_one_snapshot(tmp_path / "one", shared)
    one.close()
    two, of_two = store_of_one_snapshot(tmp_path / "two", shared)
    assert files_below(shared) == {*foreign, of_one, of_two}
    two.close()
    again, another = store_of_one_snapshot(tmp_path / "one", shared)
    assert files_below(shared) == {*foreign, of_one, of_two, another}
    assert of_one.parent.parent == another.parent.parent != of_two.parent.parent
    again.close()


def test_names_of_snapshots_are_not_interned(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of interned strings would be allocated anew with every few thousand of them."""
    interned: list[str] = []
    intern = sys.intern

    def noted(text: str) -> str:
        interned.append(text)
        return intern(text)

    conversations = open_conversations(model, tmp_path, replay_tokens=0)
    chat = Chat(conversations)
    monkeypatch.setattr(sys, "intern", noted)
    chat.say("Hello")
    conversations._restorer.residency.park_all()
    assert chat.say("On").facts.state == "loaded"
    Path("a.session").with_name("b.session")
    assert {name for name in interned if ".session" in name} == {"a.session", "b.session"}
