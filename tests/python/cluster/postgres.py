"""A PostgreSQL server of the tests' own, from Debian's packages, on a socket in a folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

MISSING = "initdb must be under /usr/lib/postgresql, but is not; `apt-get install postgresql`"
_SETTINGS = {
    "listen_addresses": "''",
    "fsync": "off",  # the tests restart the server, never the machine
    "max_connections": "60",
    "shared_buffers": "16MB",
    "autovacuum": "off",
}


def programs() -> Path | None:
    """Return the folder of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class PostgresServer:
    """A running server; `close` ends and deletes it."""

    def __init__(self, bin_folder: Path) -> None:
        self._bin = bin_folder
        # Not below pytest's folder: the name of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self._user = self._unprivileged()
        self._data = self.folder / "data"
        self._run("initdb", "-D", self._data, "-U", "ada", "-A", "trust", "-E", "UTF8",
                  "--locale=C", "--no-sync")  # fmt: skip
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{self.folder}'\n")
            file.writelines(f"{name} = {value}\n" for name, value in _SETTINGS.items())
        self.start()

    def _unprivileged(self) -> dict[str, int]:
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return {}
        account = pwd.getpwnam("daemon")
        os.chown(self.folder, account.pw_uid, account.pw_gid)
        return {"user": account.pw_uid, "group": account.pw_gid}

    def _run(self, program: str, *arguments: object) -> str:
        command = [str(self._bin / program), *map(str, arguments)]
        with tempfile.TemporaryFile("w+") as said:  # the server keeps it open
            done = subprocess.run(
                command, stdout=said, stderr=said, cwd=self.folder, check=False, **self._user
            )
            said.seek(0)
            text = said.read()
        assert done.returncode == 0, text
        return text

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "start")

    def stop(self, how: str = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-m", how, "-w", "stop")

    def sql(self, statement: str, database: str = "postgres") -> str:
        return self._run(
            "psql", "-h", self.folder, "-U", "ada", "-d", database, "-qAtc", statement
        ).strip()

    def new_database(self, name: str, options: str = "") -> str:
        """Create an empty database, and return its address."""
        self.sql(f"CREATE DATABASE {name} {options}")
        return self.address(name)

    def address(self, name: str, user: str = "ada") -> str:
        return f"postgresql://{user}@/{name}?host={self.folder}"

    def close(self) -> None:
        self.stop("immediate")
        deadline = time.monotonic() + 10
        while (self._data / "postmaster.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)
