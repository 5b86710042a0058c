"""Stores of earlier versions in PostgreSQL."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from sinkstream.cluster import postgres_database
from sinkstream.cluster.postgres_database import connect
from sinkstream.conversations import migrations
from sinkstream.conversations.database import TABLES, VERSION
from sinkstream.conversations.deletion import close_unfinished
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.store import Store
from tests.data.earlier_stores import MODEL
from tests.python.cluster.shared_stores import SharedLocation
from tests.python.conversations.test_migrations import STORES, check_contents

VERSIONS = range(postgres_database._FIRST, VERSION)


def write_earlier(location: SharedLocation, version: int) -> None:
    with psycopg.connect(str(location.address), autocommit=True) as connection:
        connection.execute((STORES / f"version_{version}.postgres.sql").read_text())  # type: ignore[call-overload]


def closed(location: SharedLocation) -> Store:
    """Open the store, and close what a killed server has left."""
    store = location.open("a", MODEL)
    store.submit(close_unfinished).result()
    return store


def columns(address: Any) -> dict[str, Any]:
    with connect(str(address)) as connection:
        rows = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default "
            "FROM information_schema.columns WHERE table_schema = 'sinkstream' "
            "ORDER BY table_name, ordinal_position"
        ).fetchall()
        indexes = connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'sinkstream' "
            "AND indexname NOT LIKE '%pkey%' ORDER BY 1"
        ).fetchall()
    assert {row[0] for row in rows} == set(TABLES)
    return {"columns": rows, "indexes": indexes}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_an_earlier_version_is_migrated(
    in_postgres: SharedLocation, postgres: Any, version: int
) -> None:
    write_earlier(in_postgres, version)
    check_contents(closed(in_postgres), version)
    found = columns(in_postgres.address)
    in_postgres.close()
    new = SharedLocation(postgres.new_database(f"new{version}"), in_postgres.snapshots)
    new.open("a", MODEL)
    assert found == columns(new.address)
    new.close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    in_postgres: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_earlier(in_postgres, 5)

    def fails(to: migrations.Migration) -> None:
        to.execute("DELETE FROM nodes")
        to.execute("DROP TABLE forms")
        raise StoreError("store: it fails.")

    monkeypatch.setitem(migrations._STEPS, 5, fails)
    with pytest.raises(StoreError, match="it fails"):
        in_postgres.open("a", MODEL)
    monkeypatch.undo()
    check_contents(closed(in_postgres), 5)


@pytest.mark.parametrize("version", [2, VERSION + 1])
def test_a_store_of_another_version_is_refused(in_postgres: SharedLocation, version: int) -> None:
    write_earlier(in_postgres, 5)
    with connect(str(in_postgres.address)) as connection:
        connection.execute("UPDATE meta SET value = %s WHERE key = 'version'", [b"%d" % version])
    with pytest.raises(StoreError, match=f"from 3 to {VERSION}, .* but has version {version}"):
        in_postgres.open("a", MODEL)


def test_a_store_that_another_server_uses_is_not_migrated(in_postgres: SharedLocation) -> None:
    write_earlier(in_postgres, 5)
    with connect(str(in_postgres.address)) as connection:
        connection.execute(
            "INSERT INTO replicas VALUES ('b', '', EXTRACT(EPOCH FROM clock_timestamp()))"
        )
        with pytest.raises(StoreError, match="no other server while it is migrated"):
            in_postgres.open("a", MODEL)
        connection.execute("UPDATE replicas SET seen = seen - 60")
    check_contents(closed(in_postgres), 5)
