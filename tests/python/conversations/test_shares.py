"""Tenants that share a store: the one that takes most of it pays first."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sinkstream.conversations.fence import Fence
from sinkstream.conversations.maintenance import Maintenance
from sinkstream.conversations.node import Form, form_node
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.sqlite_store import SqliteStore
from sinkstream.conversations.store import Store
from tests.python.conversations.stores import StoreLocation, begun, ended, finish, writer_of


@pytest.fixture
def store(location: StoreLocation) -> Store:
    return location.open()


def filled(store: Store, tenant: str, count: int, size: int) -> list[str]:
    """Write conversations of one turn; return their names, oldest first."""
    names = []
    for _ in range(count):
        new = begun(tenant=tenant, record="x" * size)
        writer_of(store, new).begin(new)
        finish(store, new, [1], b"h")
        names.append(new.conversation)
    return names


def left(store: Store, tenant: str) -> list[str]:
    return [name for name, _ in store.conversations(tenant)][::-1]


@pytest.fixture
def sweep(store: Store) -> Iterator[Any]:
    """Give what sweeps a store once, with these settings."""
    opened: list[Maintenance] = []

    def run(**settings: Any) -> None:
        snapshots = SimpleNamespace(drop_snapshot=lambda node: drop(store, node))
        restorer: Any = SimpleNamespace(residency=SimpleNamespace(all=list), snapshots=snapshots)
        opened.append(
            Maintenance(
                restorer, store, Fence(store), Settings(maintenance_s=3600, **settings),
                delete=lambda writer, tick: writer.delete_all(tick).result(),
            )
        )  # fmt: skip
        opened[-1].run()

    yield run
    for each in opened:
        each.close()


def drop(store: Store, node_id: str) -> None:
    node = store.node(node_id)
    assert node is not None
    writer_of(store, begun(node.conversation)).drop_snapshot(node_id)


def used(store: Store) -> int:
    usage = store.usage()
    return usage.transcripts + usage.snapshots


def test_a_key_with_big_turns_deletes_none_of_anothers(store: Store, sweep: Any) -> None:
    small = filled(store, "ada", 5, 5_000)
    big = filled(store, "bob", 20, 100_000)  # later: ada's are the oldest
    sweep(max_bytes=used(store) - 1_000_000)
    assert left(store, "ada") == small
    assert left(store, "bob") == big[-len(left(store, "bob")) :]
    assert 5 <= len(left(store, "bob")) <= 10


def test_keys_that_take_the_same_pay_alternately(store: Store, sweep: Any) -> None:
    ada = filled(store, "ada", 10, 50_000)
    bob = filled(store, "bob", 10, 50_000)
    sweep(max_bytes=used(store) - 500_000)
    for tenant, names in (("ada", ada), ("bob", bob)):
        kept = left(store, tenant)
        assert kept == names[-len(kept) :]
        assert 4 <= len(kept) <= 6


def test_snapshots_of_the_largest_key_go_before_its_conversations(store: Store, sweep: Any) -> None:
    names = {}
    for tenant, size in (("ada", 10), ("bob", 1_000_000)):
        new = begun(tenant=tenant)
        writer = writer_of(store, new)
        writer.begin(new)
        node = finish(store, new, [1], b"h")
        writer.add_snapshot(node, writer.new_file(node.id), size)
        names[tenant] = node.id
    sweep(max_bytes=used(store) - 500)
    assert [name for name, _ in store.oldest_snapshots()] == [names["ada"]]
    assert left(store, "ada")
    assert left(store, "bob")


def test_each_key_keeps_as_many_conversations(store: Store, sweep: Any) -> None:
    ada = filled(store, "ada", 2, 10)
    bob = filled(store, "bob", 5, 10)
    sweep(max_conversations=3)
    assert left(store, "ada") == ada
    assert left(store, "bob") == bob[-3:]


# ---- sizes ---------------------------------------------------------------------------------------


def true_bytes(store: Store, conversation: str) -> int:
    """Return what a conversation's rows take, by their contents."""
    count = 0
    for row in store.rows(
        "SELECT session_key, read_ids, messages, given, record, note FROM nodes "
        "WHERE conversation = ?",
        [conversation],
    ):
        texts = [one.encode() if isinstance(one, str) else bytes(one or b"") for one in row]
        count += 512 + sum(map(len, texts))
    for query in (
        "SELECT ids, text FROM parts JOIN nodes ON node = nodes.id",
        "SELECT ids, given FROM forms JOIN nodes ON forms.id = nodes.id || '-settled'",
    ):
        rows = store.rows(f"{query} WHERE conversation = ?", [conversation])
        count += sum(len(ids) for ids, _ in rows)
        count += sum(len(text) for _, text in rows if "parts" in query)
    return count


def check_bytes(store: Store) -> None:
    store.write_queued()
    found = dict(store.rows("SELECT id, bytes FROM conversations"))
    assert found == {name: true_bytes(store, name) for name in found}


def test_the_bytes_of_conversations_are_those_of_their_rows(store: Store) -> None:
    new = begun(session_key="kéy", messages='["ü"]', given="né", record="r")
    writer = writer_of(store, new)
    writer.begin(new)
    writer.begin(new)  # a job that is done again changes nothing
    check_bytes(store)
    assert writer.try_add_part(new.id, 0, array("i", [4, 5]), "ö")
    check_bytes(store)
    node = ended(new, [4, 5, 6], b"h")
    for _ in range(2):
        writer.finish(node, 1, array("i", [6]), "text", "note").result()
        check_bytes(store)
    for note in ("a longer note", "a longer note", "ß"):
        writer.note(node.id, note).result()
        check_bytes(store)
    form = Form(form_node(node, None, 2), array("i", [1, 2]))
    assert writer.add_forms([form]).result()
    check_bytes(store)
    following = [begun(new.conversation, node.id, tokens=6) for _ in range(2)]
    for each in following:
        writer.begin(each)
        finish(store, each, [7], b"i")
    check_bytes(store)
    writer.delete_tree(following[0].id).result()
    check_bytes(store)
    writer.forget(following[1].id).result()
    check_bytes(store)
    assert sum(store.shares().values()) == true_bytes(store, new.conversation)


def test_a_reply_that_lost_a_part_takes_no_bytes_for_the_rest(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, "model")
    new = begun()
    writer_of(store, new).begin(new)
    for number in (0, 2):  # the write of the second one has failed
        assert writer_of(store, new).try_add_part(new.id, number, array("i", [number + 4]), "x")
    store.close()
    store = SqliteStore.open(tmp_path, "model")
    check_bytes(store)
    store.close()
