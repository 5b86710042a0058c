"""What the replicas share, on a host of its own: PostgreSQL, and a server of S3's protocol."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from tests.hosts.network import Host
from tests.python.cluster.postgres import programs

_ACCOUNT = ("setpriv", "--reuid", "daemon", "--regid", "daemon", "--clear-groups")
_WAIT_S = 120.0


def start_shared(host: Host) -> dict[str, str]:
    """Start both, and return the environment of the replicas."""
    _start_postgres(host)
    _start_bucket(host)
    return {
        "AWS_ENDPOINT_URL": f"http://{host.name}:9000",
        "AWS_ACCESS_KEY_ID": "chat",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "SINKSTREAM_STORE": f"postgresql://chat:secret@{host.name}/chat",
        "SINKSTREAM_SNAPSHOTS": "s3://chat/states",
    }


def _start_postgres(host: Host) -> None:
    folder, at = programs(), host.folder / "postgres"
    assert folder is not None
    at.mkdir()
    shutil.chown(at, "daemon", "daemon")
    own = ("-h", at, "-U", "postgres", "-q", "-c")
    initial = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    host.run([*_ACCOUNT, folder / "initdb", "-D", at / "data", *initial])
    with (at / "data/pg_hba.conf").open("a") as file:
        file.write(f"host chat chat {host.address}/24 scram-sha-256\n")
    with (at / "data/postgresql.conf").open("a") as file:
        file.write(f"unix_socket_directories = '{at}'\nlisten_addresses = '*'\nfsync = off\n")
    host.run(
        [*_ACCOUNT, folder / "pg_ctl", "-D", at / "data", "-l", at / "log", "-w", "start"],
        within_s=_WAIT_S,
    )
    host.run([folder / "psql", *own, "CREATE ROLE chat LOGIN PASSWORD 'secret'"])
    host.run([folder / "psql", *own, "CREATE DATABASE chat OWNER chat"])


def _start_bucket(host: Host) -> None:
    host.start([sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "9000"], "bucket.log")
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            host.run(["curl", "-sf", "-X", "PUT", f"http://{host.name}:9000/chat"])
            return
        except AssertionError:
            assert time.monotonic() < end, "the bucket's server does not start"
            time.sleep(0.2)


def owner_of(shared: Host, machines: Iterable[Host], response: str) -> Host:
    """Return the host of the replica that owns the conversation of a response."""
    query = (
        "SELECT address FROM sinkstream.replicas JOIN sinkstream.owners ON name = replica "
        f"JOIN sinkstream.nodes ON session = conversation WHERE id = '{response}'"
    )
    address = urlsplit(_sql(shared, query).strip()).hostname
    return next(host for host in machines if address in (host.name, host.address))


def stored_turns(host: Host) -> set[str]:
    """Return the responses that the store has whole."""
    return set(_sql(host, "SELECT id FROM sinkstream.nodes WHERE hash IS NOT NULL").split())


def _sql(host: Host, query: str) -> str:
    folder = programs()
    assert folder is not None
    own = ("-h", host.folder / "postgres", "-U", "postgres", "-d", "chat", "-qAtc")
    return host.run([folder / "psql", *own, query])
