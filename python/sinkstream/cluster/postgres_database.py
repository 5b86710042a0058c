"""A PostgreSQL database: how it is reached, prepared, checked and written.

The tables are in a schema of their own. A lost connection is reopened; a transaction whose outcome
is unknown is retried, which `Job` allows.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sinkstream.checkpoint.quoting import first_line
from sinkstream.conversations.database import (
    GONE_S,
    INDEXES,
    MOST_ADDED_S,
    SERVED,
    TABLES,
    VERSION,
    columns_of,
)
from sinkstream.conversations.errors import (
    StoreError,
    full_error,
    other_columns,
    other_model,
    other_version,
    used_by_others,
    wrongly_written,
)
from sinkstream.conversations.migrations import Migration, migrate

logger = logging.getLogger("sinkstream")

SCHEMA = "sinkstream"
_FIRST = 3
"""The first version of the tables that was written to PostgreSQL."""
_CREATION = 0x73696E6B  # of the advisory lock under which the tables are created
_TYPES = {"BLOB": "BYTEA", "REAL": "DOUBLE PRECISION", "INTEGER": "BIGINT"}
_REACHED = {  # unless the address says otherwise: a host that is gone is noticed
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "sinkstream",
}
_SETTINGS = (
    f"SET search_path TO {SCHEMA}",
    # A replica that is stopped inside a transaction must not keep others from its conversations.
    "SET idle_in_transaction_session_timeout = '3s'",
    "SET lock_timeout = '10s'",
)
# The server is ending or starting, has no connection left, or found transactions in conflict.
_TRANSIENT = ("08", "57P01", "57P02", "57P03", "53300", "40001", "40P01", "25P03")


def conninfo_of(address: str) -> str:
    """Return the connection string of an address, with our defaults.

    Raises:
        StoreError: It is not a valid address.
    """
    try:
        given = conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise StoreError(
            f"store: the address of PostgreSQL must have the form postgresql://user@host/database, "
            f"but does not: {str(error).strip()}."
        ) from None
    return make_conninfo(**{**_REACHED, **given})  # type: ignore[arg-type]


def name_of(conninfo: str) -> str:
    """Return where a database is, without its password."""
    parts = conninfo_to_dict(conninfo)
    host, port = parts.get("host", ""), parts.get("port")
    return f"postgresql://{host}{f':{port}' if port else ''}/{parts.get('dbname', '')}"


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """Return a connection with manual transactions."""
    connection = psycopg.connect(conninfo, autocommit=True)
    configure(connection)
    return connection


def configure(connection: psycopg.Connection[Any]) -> None:
    """Prepare a new connection."""
    for statement in _SETTINGS:
        connection.execute(statement)


def marked(query: str) -> str:
    """Return a statement with psycopg's placeholders."""
    return query.replace("?", "%s")


def is_transient(error: Exception) -> bool:
    """Return whether a transaction that failed with an error may succeed if it is retried."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(_TRANSIENT)


class PostgresWriteConnection:
    """Implements `WriteConnection`."""

    clock = "EXTRACT(EPOCH FROM clock_timestamp())::float8"
    age = (
        f"(SELECT convert_from(value, 'UTF8')::float8 + {MOST_ADDED_S} FROM meta "
        f"WHERE key = '{SERVED}')"
    )
    row_lock = " FOR UPDATE"
    size = "octet_length({})"

    def __init__(self, conninfo: str) -> None:
        """Connect.

        Raises:
            psycopg.Error: The database cannot be reached.
        """
        self._conninfo = conninfo
        self._connection = connect(conninfo)

    def execute(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Run a statement."""
        return self._connection.execute(marked(query), values)

    def begin(self) -> None:
        """Begin a transaction, on a new connection if the last one was lost."""
        if self._connection.closed:
            self._connection = connect(self._conninfo)
        self._connection.execute("BEGIN")

    def commit(self) -> None:
        """Commit."""
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Roll the transaction back, if there is one; close the connection if that fails."""
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.close()

    def is_transient(self, error: Exception) -> bool:
        """Return whether the same transaction may succeed if it is retried."""
        return is_transient(error)

    def shown(self, error: Exception) -> Exception:
        """Return the error to raise."""
        if isinstance(error, psycopg.Error):
            return postgres_error(name_of(self._conninfo), error)
        return error

    def clean(self) -> bool:
        """Return True: PostgreSQL's own vacuum removes deleted text."""
        return True

    def close(self) -> None:
        """Disconnect."""
        with suppress(psycopg.Error):
            self._connection.close()


def prepare(connection: PostgresWriteConnection, conninfo: str, model: str) -> None:
    """Create the tables if there are none, and check them.

    Raises:
        StoreError: They belong to a different version or model, or cannot be written.
        psycopg.Error: The database cannot be used.
    """
    name = name_of(conninfo)
    connection.begin()
    try:
        (encoding,) = connection.execute("SHOW server_encoding").fetchone() or ("",)
        if encoding != "UTF8":
            raise StoreError(
                f"store: {name} must have the encoding UTF8, but has {encoding}. Create a database "
                "with it."
            )
        # Another replica that does the same waits, and then finds the tables.
        connection.execute("SELECT pg_advisory_xact_lock(?)", [_CREATION])
        if connection.execute(f"SELECT to_regclass('{SCHEMA}.meta')").fetchone() == (None,):
            _create(connection, model)
        else:
            _check(connection, name, model)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _create(connection: PostgresWriteConnection, model: str) -> None:
    found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = ?", [SCHEMA])
    if found.fetchone() is None:  # a database may allow its user tables, but no schemas
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {SCHEMA}.{table} ({_typed(columns)})")
    for index, columns in INDEXES.items():
        connection.execute(f"CREATE INDEX {index} ON {SCHEMA}.{columns}")
    values = {
        "secret": secrets.token_bytes(32), "model": model.encode(), "version": b"%d" % VERSION,
        SERVED: b"0",
    }  # fmt: skip
    for key, value in values.items():
        connection.execute("INSERT INTO meta VALUES (?, ?)", (key, value))


def _typed(columns: str) -> str:
    """Return columns with PostgreSQL's types."""
    for ours, theirs in _TYPES.items():
        columns = columns.replace(f" {ours}", f" {theirs}")
    return columns


def _check(connection: PostgresWriteConnection, name: str, model: str) -> None:
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    found_model = meta.get("model", b"none").decode()
    if found_model != model:
        raise other_model(name, model, found_model)
    version = meta.get("version", b"unknown").decode()
    if version not in map(str, range(_FIRST, VERSION + 1)):
        raise other_version(name, version, _FIRST, VERSION)
    if version != str(VERSION):
        _migrate(connection, name, int(version))
    for table in TABLES:
        expected = columns_of(table)
        rows = connection.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position",
            [SCHEMA, table],
        ).fetchall()
        found = [row[0] for row in rows]
        if found != expected:
            raise other_columns(name, table, expected, found)
    # Says now, not after a reply, if it is read-only.
    connection.execute("UPDATE meta SET value = value WHERE key = 'model'")


def _migrate(connection: PostgresWriteConnection, name: str, version: int) -> None:
    alive = f"SELECT 1 FROM replicas WHERE seen > {connection.clock} - ?"
    if connection.execute(alive, [GONE_S]).fetchone() is not None:
        raise used_by_others(name, version, VERSION)
    migrate(Migration(connection, _typed, True), version)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'version'", [b"%d" % VERSION])
    logger.info("store: %s is migrated from version %d to %d", name, version, VERSION)


def postgres_error(name: str, error: psycopg.Error) -> StoreError:
    """Return the error to raise for one from PostgreSQL."""
    reason = first_line(error).rstrip(".")
    if isinstance(error, psycopg.errors.DiskFull):
        return full_error(name)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return StoreError(f"store: {name} must be writable, but is read-only ({reason}).")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return StoreError(
            f"store: {name} must let its user create and write the schema `{SCHEMA}`, but does not "
            f"({reason})."
        )
    if isinstance(error, psycopg.IntegrityError | psycopg.ProgrammingError | psycopg.DataError):
        return wrongly_written(name, reason)
    return StoreError(f"store: {name} cannot be used: {reason}.")
