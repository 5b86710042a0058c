"""Stores of earlier versions: everything in them is there, in order, or the store is as it was."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from array import array
from pathlib import Path
from typing import Any

import pytest

from sinkstream.conversations import migrations
from sinkstream.conversations.database import INDEXES, TABLES, VERSION
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.node import settled_id
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.conversations.store import Store
from tests.data.earlier_stores import ADA, BOB, MODEL, TURNS
from tests.python.conversations.stores import begun, finish, writer_of
from tests.python.conversations.test_shares import check_bytes

STORES = Path(__file__).parents[2] / "data" / "stores"
VERSIONS = range(migrations.OLDEST, VERSION)


def earlier_store(folder: Path, version: int) -> Path:
    """Write a store of an earlier version; return its database."""
    folder.mkdir()
    connection = sqlite3.connect(folder / "turns.sqlite")
    connection.executescript((STORES / f"version_{version}.sql").read_text())
    connection.close()
    return folder / "turns.sqlite"


def check_contents(store: Store, version: int) -> None:
    """All that the earlier version kept is there, and goes on."""
    assert [(one.id, one.title) for one in store.listed("ada", 9)] == [(ADA, "Où est la mer?")]
    assert [name for name, _ in store.conversations("bob")] == [BOB]
    # The reply that was running when its server was killed is closed.
    assert [node.id for node in store.nodes_of(ADA)] == [*TURNS[:3], TURNS[3]]
    first, second, branch, cut = store.nodes_of(ADA)
    assert (first.session_key, first.tokens, first.last_id) == ("clé", 5, 5)
    assert (second.parent, branch.parent, cut.parent) == (first.id, first.id, second.id)
    assert (cut.finish_reason, cut.tokens) == ("interrupted", 15)
    assert store.ids_of(TURNS[0]) == array("i", [1, 2, 3, 4, 5])
    turn = store.text_of("ada", TURNS[2])
    assert turn is not None
    assert (turn.given, turn.text) == ("Une ", "île")
    assert turn.messages == [{"content": "Où est la mer?", "role": "user"}]
    noted = store.text_of("ada", TURNS[0])
    assert noted is not None
    assert (noted.record, noted.note) == (("", "") if version == 1 else ("{}", noted.note))
    assert store.find("ada", [first.hash]) == [first]
    check_bytes(store)
    goes_on(store)


def goes_on(store: Store) -> None:
    """What is written now is later than all that was there."""
    new = begun(ADA, TURNS[1], tokens=13)
    writer_of(store, new).begin(new)
    finish(store, new, [6], b"n")
    last = store.last_turn("ada", ADA)
    assert last is not None
    assert last.id == new.id
    again = begun(tenant="bob")
    writer_of(store, again).begin(again)
    finish(store, again, [6], b"n")
    assert [name for name, _ in store.conversations("bob")] == [again.conversation, BOB]
    check_bytes(store)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_an_earlier_version_is_migrated(tmp_path: Path, version: int) -> None:
    path = earlier_store(tmp_path / "store", version)
    store = SqliteStore.open(path.parent, MODEL)
    check_contents(store, version)
    store.close()
    assert shape(path) == shape_of_new(tmp_path)
    store = SqliteStore.open(path.parent, MODEL)  # once
    assert store.rows("PRAGMA user_version") == [(VERSION,)]
    store.close()


def shape(path: Path) -> dict[str, Any]:
    """Return the tables, their columns and the indexes of a database."""
    connection = sqlite3.connect(path)
    found: dict[str, Any] = {
        table: [row[1:4] for row in connection.execute(f"PRAGMA table_info({table})")]
        for table in TABLES
        if table != "meta"
    }
    found["indexes"] = sorted(
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        )
    )
    found["tables"] = sorted(
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    )
    connection.close()
    return found


def shape_of_new(folder: Path) -> dict[str, Any]:
    SqliteStore.open(folder / "new", MODEL).close()
    return shape(folder / "new" / "turns.sqlite")


def test_an_earlier_snapshot_is_used_if_it_has_its_own_name(tmp_path: Path) -> None:
    path = earlier_store(tmp_path / "store", 5)
    file = sqlite3.connect(path).execute("SELECT file FROM snapshots").fetchone()[0]
    kept = path.parent / "snapshots" / "00" / file
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"session")
    store = SqliteStore.open(path.parent, MODEL)
    assert store.snapshot_of(TURNS[1]) == file
    store.close()
    assert kept.exists()


def test_an_earlier_snapshot_without_its_own_name_is_deleted(tmp_path: Path) -> None:
    path = earlier_store(tmp_path / "store", 1)
    store = SqliteStore.open(path.parent, MODEL)
    assert store.oldest_snapshots() == []
    assert store.rows("SELECT file, is_doomed FROM loose_files") == [(f"{TURNS[1]}.session", 1)]
    store.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = earlier_store(tmp_path / "store", version)
    before = dump(path)
    for fails_at in range(1, 60):
        count = 0

        def execute(self: migrations.Migration, statement: str, last: int = fails_at) -> None:
            nonlocal count
            count += 1
            if count == last:
                raise sqlite3.OperationalError("database or disk is full")
            self.connection.execute(statement)

        monkeypatch.setattr(migrations.Migration, "execute", execute)
        try:
            SqliteStore.open(path.parent, MODEL).close()
        except StoreError as error:
            assert "free space" in str(error)  # noqa: PT017
        else:
            break
        assert dump(path) == before
    assert fails_at > len(INDEXES)
    store = SqliteStore.open(path.parent, MODEL)
    check_contents(store, version)
    store.close()


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [str(connection.execute("PRAGMA user_version").fetchone()), *connection.iterdump()]
    connection.close()
    return found


def test_a_migration_that_is_killed_is_done_again(tmp_path: Path) -> None:
    path = earlier_store(tmp_path / "store", 5)
    before = dump(path)
    child = os.fork()
    if child == 0:  # dies in the middle

        def die(to: Any) -> None:
            to.execute("DELETE FROM nodes")
            os._exit(0)

        migrations._STEPS[5] = die
        SqliteStore.open(path.parent, MODEL)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert dump(path) == before
    store = SqliteStore.open(path.parent, MODEL)
    check_contents(store, 5)
    store.close()


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_store_of_another_version_is_refused_as_it_is(tmp_path: Path, version: int) -> None:
    path = earlier_store(tmp_path / "store", 5)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    before = digest(path)
    with pytest.raises(StoreError, match=f"from 1 to {VERSION}, .* but has version {version}"):
        SqliteStore.open(path.parent, MODEL)
    assert digest(path) == before


def test_another_models_store_is_not_migrated(tmp_path: Path) -> None:
    path = earlier_store(tmp_path / "store", 5)
    before = dump(path)
    with pytest.raises(StoreError, match="belongs to model"):
        SqliteStore.open(path.parent, "another")
    assert dump(path) == before


def test_a_store_that_another_server_uses_is_not_migrated(tmp_path: Path) -> None:
    path = earlier_store(tmp_path / "store", 5)
    before = dump(path)
    other = os.open(path.with_name("lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_SH)
    with pytest.raises(StoreError, match="no other server while it is migrated from version 5"):
        SqliteStore.open(path.parent, MODEL, is_shared=True)
    assert dump(path) == before
    os.close(other)
    store = SqliteStore.open(path.parent, MODEL, is_shared=True)
    second = SqliteStore.open(path.parent, MODEL, is_shared=True)  # the lock is shared again
    assert second.form(store.nodes_of(ADA)[0]) is None
    assert second.rows("SELECT id FROM forms WHERE id = ?", [settled_id(TURNS[0])]) == []
    for each in (store, second):
        each.close()
