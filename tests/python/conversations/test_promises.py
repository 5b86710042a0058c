"""Replies that clients were promised: kept until their turns are, or until they are old."""

from __future__ import annotations

from array import array

import pytest

from sinkstream.conversations.deletion import close_unfinished
from sinkstream.conversations.maintenance import StoreAge
from sinkstream.conversations.promises import BROKEN, Promise, Promises
from sinkstream.conversations.store import Store
from tests.python.conversations.stores import StoreLocation, begun, finish, writer_of


@pytest.fixture
def store(location: StoreLocation) -> Store:
    return location.open()


def promise(name: str, tenant: str = "ada", size: int = 1) -> Promise:
    return Promise(name, tenant, "r" * size, '["é"]')


def test_a_promise_is_kept_until_its_turn_is_complete(store: Store) -> None:
    promises = Promises(store, "one")
    new = begun()
    made = promise(new.id)
    promises.make(made)
    promises.make(made)
    assert promises.find("ada", new.id) == made
    assert promises.find("bob", new.id) is None
    writer_of(store, new).begin(new).result()
    found = promises.find("ada", new.id)
    assert found is not None
    assert found.is_running
    finish(store, new, [4], b"h")
    assert promises.find("ada", new.id) is None


@pytest.mark.parametrize("ids", [[], [4, 5]])
def test_a_promise_outlives_a_process_that_dies(store: Store, ids: list[int]) -> None:
    """A reply of which something was committed is a turn; of any other, the promise is broken."""
    new = begun()
    Promises(store, "one").make(promise(new.id))
    writer_of(store, new).begin(new)
    if ids:
        assert writer_of(store, new).try_add_part(new.id, 0, array("i", ids), "text")
    store.submit(close_unfinished).result()
    after = Promises(store, "one")  # a new process of the same name
    found = after.find("ada", new.id)
    if ids:
        assert found is None
        assert store.node(new.id) is not None
    else:
        assert found is not None
        assert (found.outcome, found.is_running) == (BROKEN, False)


def test_promises_of_a_replica_that_is_gone_are_broken(store: Store) -> None:
    Promises(store, "dead").make(promise("resp_1"))
    Promises(store, "alive").make(promise("resp_2"))
    store.submit(
        lambda connection: connection.execute(
            f"INSERT INTO replicas VALUES ('alive', '', {connection.clock}), ('dead', '', 0)"
        )
    ).result()
    promises = Promises(store, "another")
    assert promises.find("ada", "resp_1") == promise("resp_1")
    promises.break_gone()
    found = [promises.find("ada", name) for name in ("resp_1", "resp_2")]
    assert [one and one.outcome for one in found] == [BROKEN, ""]


def test_promises_that_have_ended_grow_old(store: Store) -> None:
    promises = Promises(store, "")
    for name in ("resp_1", "resp_2"):
        promises.make(promise(name))
    promises.end("resp_1", '{"status":"cancelled"}')
    found = promises.find("ada", "resp_1")
    assert found is not None
    assert found.outcome == '{"status":"cancelled"}'
    promises.remove_old(StoreAge(store).advance())  # used a minute later than now
    assert promises.find("ada", "resp_1") is not None
    promises.remove_old(1e9)
    assert promises.find("ada", "resp_1") is None
    assert promises.find("ada", "resp_2") is not None  # its client still waits


def test_promises_count_among_what_a_tenant_takes(store: Store) -> None:
    promises = Promises(store, "")
    promises.make(promise("resp_1", "bob", 100_000))
    promises.make(promise("resp_2", "ada", 10))
    assert store.shares()["bob"] > 100_000 > store.shares()["ada"]
    assert promises.ended("bob") == []
    promises.end("resp_1", BROKEN)
    ((name, size),) = promises.ended("bob")
    promises.remove(name)
    assert size > 100_000
    assert set(store.shares()) == {"ada"}
