"""PostgreSQL that stops, fills up, refuses or is of the wrong kind: an error says so."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.cluster import postgres_database, postgres_store
from sinkstream.cluster.open_shared_store import SharedSettings, open_shared
from sinkstream.cluster.postgres_database import connect
from sinkstream.conversations import database
from sinkstream.conversations.database import Connection
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.snapshot_files import SnapshotFolder
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import TurnRequest
from sinkstream.errors import InvalidArgument
from tests.python.cluster.postgres import PostgresServer
from tests.python.cluster.shared_stores import (
    SharedLocation,
    claim_of,
    claim_to,
    claimed,
    finish,
    owners,
)
from tests.python.conversations.stores import begun, ended
from tests.python.conversations.talk import (
    STILL,
    Chat,
    alone,
    options,
    path_ids,
    user,
)


@pytest.fixture
def location(in_postgres: SharedLocation) -> SharedLocation:
    return in_postgres


def database_of(location: SharedLocation) -> str:
    return str(location.address).partition("@/")[2].partition("?")[0]


def written(store: Store) -> str:
    """Write a turn, and return its id."""
    new = begun()
    claim_of(store, new).begin(new)
    return finish(store, new, [4], b"a").id


def lose_connections(postgres: PostgresServer, location: SharedLocation) -> None:
    postgres.sql(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
        f"'{database_of(location)}'"
    )


def restart(postgres: PostgresServer, location: SharedLocation) -> None:
    postgres.stop("immediate")  # as after a crash
    postgres.start()


FAULTS = [lose_connections, restart]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_turn_goes_on_after_the_database_was_away(
    model: sinkstream.Model, postgres: PostgresServer, location: SharedLocation,
    fault: Callable[[PostgresServer, SharedLocation], None],
) -> None:  # fmt: skip
    conversations = location.conversations(model, seats=2, maintenance_s=STILL, saved_early=0)
    chat = Chat(conversations)
    chat.say("Hello")
    request = TurnRequest("", [*chat.messages, user("More")], options(1, 300))
    turn = conversations.begin(request)
    next(turn.stream)
    fault(postgres, location)
    reply = turn.stream.result()
    node = conversations._store.node(turn.end().node)
    assert node is not None
    ids = path_ids(conversations, node.id)
    assert ids[-300:] == reply.token_ids
    assert alone(model, ids[:-300], 1, 300)[0] == reply.token_ids


def test_a_commit_whose_outcome_is_not_known_is_repeated_once(
    postgres: PostgresServer, location: SharedLocation
) -> None:
    store = location.open("a")
    connection = store._writer._connection
    commit = connection.commit
    lost: list[int] = []

    def commit_and_lose() -> None:
        commit()
        if not lost:
            lost.append(1)
            lose_connections(postgres, location)
            connection.execute("SELECT 1")  # fails

    connection.commit = commit_and_lose  # type: ignore[method-assign]
    new = begun()
    claim_of(store, new).begin(new)
    assert claim_of(store, new).try_add_part(new.id, 0, array("i", [4]), "text")
    node = ended(new, [4, 5], b"a")
    claim_of(store, new).finish(node, 1, array("i", [5]), "more").result()
    assert lost
    assert store.node(new.id) == node
    assert store.ids_of(new.id).tolist() == [1, 2, 3, 4, 5]


def test_a_database_that_stays_away_is_an_error_in_time(
    postgres: PostgresServer, location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RETRY_S", 0.5)
    monkeypatch.setattr(postgres_store, "RETRY_S", 0.5)
    store = location.open("a")
    node = written(store)
    postgres.stop("immediate")
    try:
        began = time.monotonic()
        for work in (lambda: written(store), lambda: store.node(node)):
            with pytest.raises(StoreError, match=r"postgresql://.*/test\w+ cannot be used: "):
                work()
        with pytest.raises(StoreError, match="cannot be used"):
            location.open("b")
        assert time.monotonic() - began < 30
        time.sleep(3)  # an outage that is longer than the pool tries to connect
    finally:
        postgres.start()
        monkeypatch.undo()
    assert store.node(node) is not None  # it is used again
    assert store.node(written(store)) is not None


def test_transactions_in_conflict_are_tried_again(location: SharedLocation) -> None:
    """Two replicas lock two rows in opposite orders: PostgreSQL ends one of the transactions."""
    one, two = location.open("a"), location.open("b")
    news = [begun(), begun()]
    for new in news:
        claim_of(one, new).begin(new)
        finish(one, new, [4], b"a")
    tried: list[str] = []
    barrier = threading.Barrier(2, timeout=20)

    def job(order: list[int], name: str) -> Callable[[Connection], None]:
        def run(connection: Connection) -> None:
            tried.append(name)
            for number, index in enumerate(order):
                connection.execute(
                    "SELECT epoch FROM owners WHERE session = ? FOR UPDATE",
                    [news[index].conversation],
                )
                if number == 0 and tried.count(name) == 1:
                    barrier.wait()

        return run

    dones = [one._writer.submit(job([0, 1], "a")), two._writer.submit(job([1, 0], "b"))]
    for done in dones:
        done.result(30)
    assert len(tried) > 2  # at least one of them twice


def test_a_replica_that_is_stopped_inside_a_transaction_loses_it(location: SharedLocation) -> None:
    """It holds the lock on the owner's row; PostgreSQL ends its transaction."""
    old, new = location.open("a"), location.open("b")
    node = old.node(written(old))
    assert node is not None
    inside, goes_on = threading.Event(), threading.Event()
    claim = claim_to(old, node.conversation)

    def stopped(connection: Connection) -> None:
        connection.execute(
            "SELECT epoch FROM owners WHERE session = ? FOR UPDATE", [claim.conversation]
        )
        connection.execute("UPDATE nodes SET note = 'late' WHERE id = ?", [node.id])
        inside.set()
        assert goes_on.wait(30)

    done = old._writer.submit(stopped)
    assert inside.wait(10)
    began = time.monotonic()
    assert owners(new).take(claim.conversation) == claimed(claim.conversation, 2)
    assert time.monotonic() - began < 8
    goes_on.set()
    done.exception(30)
    with pytest.raises(SessionMoved):
        claim.note(node.id, "later").result()


def test_reading_never_waits_for_a_transaction(location: SharedLocation) -> None:
    store = location.open("a")
    node = store.node(written(store))
    assert node is not None
    reads: list[Any] = []

    def during(connection: Connection) -> None:
        connection.execute(
            "SELECT epoch FROM owners WHERE session = ? FOR UPDATE", [node.conversation]
        )
        reads.append(store.node(node.id))
        reads.append(owners(store).owner(node.conversation))

    store._writer.submit(during).result(10)
    assert reads[0] == node
    assert reads[1].epoch == 1


# ---- refusals ------------------------------------------------------------------------------------


def raising(code: str, message: str) -> str:
    """Return statements after which each part of a reply fails with an error of PostgreSQL."""
    return (
        "CREATE FUNCTION sinkstream.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION '{message}' USING ERRCODE = '{code}'; END $$; "
        "CREATE TRIGGER refuse BEFORE INSERT ON sinkstream.parts FOR EACH ROW "
        "EXECUTE FUNCTION sinkstream.refuse()"
    )


def test_a_full_disk_fails_the_turn_and_keeps_what_it_had(
    postgres: PostgresServer, location: SharedLocation
) -> None:
    store = location.open("a")
    kept = written(store)
    postgres.sql(raising("53100", "could not extend file"), database_of(location))
    with pytest.raises(StoreError, match="must be on a disk with free space"):
        written(store)
    postgres.sql("DROP TRIGGER refuse ON sinkstream.parts", database_of(location))
    assert store.node(kept) is not None
    assert store.node(written(store)) is not None


def test_a_database_that_becomes_read_only_is_refused(
    postgres: PostgresServer, location: SharedLocation
) -> None:
    store = location.open("a")
    kept = written(store)
    name = database_of(location)
    postgres.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    lose_connections(postgres, location)
    with pytest.raises(StoreError, match="must be writable, but is read-only"):
        written(store)
    assert store.node(kept) is not None
    with pytest.raises(StoreError, match="must be writable, but is read-only"):
        location.open("b")


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "UPDATE sinkstream.meta SET value = '7' WHERE key = 'version'",
            "must have a version from 3 to 6, .* but has version 7",
        ),
        ("DROP TABLE sinkstream.parts", "must have a table `parts` with the columns .* has none"),
        ("ALTER TABLE sinkstream.nodes RENAME hash TO mash", "a table `nodes` with the columns"),
        ("DELETE FROM sinkstream.meta WHERE key = 'model'", "belongs to none"),
        ("DELETE FROM sinkstream.meta WHERE key = 'secret'", "must have a secret"),
    ],
)
def test_tables_of_another_form_are_refused(
    postgres: PostgresServer, location: SharedLocation, statement: str, text: str
) -> None:
    location.open("a").close()
    postgres.sql(statement, database_of(location))
    with pytest.raises(StoreError, match=text):
        location.open("b")


def test_a_store_of_another_model_is_refused(location: SharedLocation) -> None:
    location.open("a").close()
    with pytest.raises(StoreError, match="must belong to this model and its settings, other, but"):
        location.open("b", "other")


def test_a_database_of_another_encoding_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    address = postgres.new_database("latin", "ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match="must have the encoding UTF8, but has LATIN1"):
        SharedLocation(address, tmp_path).open("a")


def test_a_user_who_may_not_create_the_tables_is_told_so(
    postgres: PostgresServer, location: SharedLocation
) -> None:
    postgres.sql("CREATE ROLE bob LOGIN")
    location.address = postgres.address(database_of(location), "bob")
    with pytest.raises(StoreError, match="must let its user create and write the schema"):
        location.open("a")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("postgresql://ada@/db?nonsense=1", "must have the form postgresql://"),
        ("postgresql://ada:secret@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db cannot be used"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(tmp_path: Path, address: str, text: str) -> None:
    with pytest.raises(StoreError, match=text) as caught:
        SharedLocation(address, tmp_path).open("a")
    assert "secret" not in str(caught.value)


def test_snapshots_must_be_where_all_hosts_reach_them(location: SharedLocation) -> None:
    with pytest.raises(InvalidArgument, match="`snapshots` must be given"):
        open_shared(location.address, "model", SharedSettings(replica="a"))


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from sinkstream.cluster.open_shared_store import SharedSettings, open_shared\n"
        "try: open_shared('postgresql:///x', 'model', SharedSettings(snapshots=sys.argv[1]))\n"
        "except Exception as error: print(error)"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "the extra `cluster` must be installed for a store in PostgreSQL" in said


# ---- what PostgreSQL does not say as SQLite does -------------------------------------------------


def test_text_may_hold_nul_and_any_character(location: SharedLocation) -> None:
    store = location.open("a")
    new = begun(session_key="k\0ey", given="g\0iven", title="t\0itle \U0001f30a", tenant="ada")
    claim_of(store, new).begin(new)
    node = ended(new, [4], b"a")
    claim_of(store, new).finish(node, 0, array("i", [4]), "\0 text").result()
    found = store.node(new.id)
    assert found is not None
    assert found.session_key == "k\0ey"
    (turn,) = store.transcript("ada", new.id)
    assert (turn.given, turn.reply) == ("g\0iven", "\0 text")
    ((name, _, title, key),) = store.listed("ada", 9)
    assert (name, title, key) == (new.conversation, "t\0itle \U0001f30a", "k\0ey")
    assert store.node("resp_\0") is None
    assert store.transcript("ada", "\0") == []
    assert store.session_of("\0") is None


def test_a_replica_without_a_name_gets_one_of_its_own(location: SharedLocation) -> None:
    names = {owners(location.open()).replica for _ in range(2)}
    assert len(names) == 2
    assert "" not in names


def test_our_defaults_yield_to_those_of_the_address() -> None:
    conninfo = postgres_database.conninfo_of("postgresql://ada@host/db?connect_timeout=99")
    assert "connect_timeout=99" in conninfo
    assert "keepalives_idle=5" in conninfo


def test_a_snapshot_folder_must_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="must be a writable folder"):
        SnapshotFolder(tmp_path / "file")


def test_tables_are_created_although_the_connection_is_lost_meanwhile(
    location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, calls = postgres_database._create, []

    def create_and_lose(connection: Any, model: str) -> None:
        create(connection, model)
        calls.append(model)
        if len(calls) == 1:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(postgres_database, "_create", create_and_lose)
    store = location.open()
    assert len(calls) == 2
    assert store.node(written(store)) is not None


@pytest.mark.parametrize("how", ["DROP SCHEMA sinkstream CASCADE", "UPDATE meta SET value = ''"])
def test_a_schema_that_is_gone_is_noticed(in_postgres: SharedLocation, how: str) -> None:
    store = in_postgres.open()
    assert store.look()
    with connect(str(in_postgres.address)) as connection:
        connection.execute(how)
    assert not store.look()
    for use in (lambda: store.conversations("ada"), store.write_queued):
        with pytest.raises(StoreError, match="was deleted or replaced"):
            use()
