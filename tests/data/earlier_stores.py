r"""Writes `stores/`: what each earlier version of a store's tables has kept, as SQL.

The sources of the version write the store; `stores/README.md` has the commits:

    git archive COMMIT python/sinkstream | tar -x -C /tmp/old
    python -m tests.data.earlier_stores /tmp/old/python > tests/data/stores/version_N.sql
    python -m tests.data.earlier_stores /tmp/old/python postgres \
        > tests/data/stores/version_N.postgres.sql

Each has two tenants' conversations, one with a branch, a session key and a snapshot, and a reply
that was running when its server was killed. Times and ids are made up.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sqlite3
import subprocess
import sys
import tempfile
import time
import types
from array import array
from pathlib import Path
from typing import Any

ADA, BOB = "sess_" + "a" * 32, "sess_" + "b" * 32
TURNS = [f"resp_{number:032x}" for number in range(5)]
"""Two of ada's first conversation, a branch of the first, the one that was running, and bob's."""
MODEL = "model"


def modules(sources: str) -> types.SimpleNamespace:
    """Import the store of some sources; the package itself would need their core."""
    package = types.ModuleType("sinkstream")
    package.__path__ = [f"{sources}/sinkstream"]
    sys.modules["sinkstream"] = package
    core = types.ModuleType("sinkstream._core")
    core.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
    sys.modules["sinkstream._core"] = core
    is_below = Path(sources, "sinkstream/server/conversations").exists()
    base = "sinkstream.server.conversations" if is_below else "sinkstream.conversations"
    found = types.SimpleNamespace(base=base)
    found.node = importlib.import_module(f"{base}.node")
    found.sqlite = importlib.import_module(f"{base}.sqlite_store")
    return found


class Writer:
    """Writes turns with the methods that the version has."""

    def __init__(self, old: types.SimpleNamespace, store: Any) -> None:
        self.old = old
        self.store = store
        self.turns: dict[str, Any] = {}

    def of(self, conversation: str) -> tuple[Any, tuple[Any, ...]]:
        """Return what has the methods, and their first arguments."""
        if not hasattr(self.store, "begin"):
            writer = importlib.import_module(f"{self.old.base}.conversation_writer")
            return writer.ConversationWriter(self.store, conversation), ()
        if "claim" not in inspect.signature(self.store.begin).parameters:
            return self.store, ()
        claim = importlib.import_module(f"{self.old.base}.claim").Claim
        return self.store, (claim(conversation, 1),)

    def begin(self, name: str, parent: str | None, conversation: str, **more: Any) -> None:
        tokens = 3 if parent is None else self.turns[parent].tokens + 3
        tenant = "ada" if conversation == ADA else "bob"
        fields = {
            "id": name, "parent": parent, "conversation": conversation, "tenant": tenant,
            "session_key": None, "read_ids": array("i", [1, 2, 3]), "before": b"b" * 32,
            "given": "", "tokens": tokens, "messages": "[]", **more,
        }  # fmt: skip
        known = {each: fields[each] for each in fields if each in self.fields("NewNode")}
        self.turns[name] = self.old.node.NewNode(**known)
        to, first = self.of(conversation)
        to.begin(*first, self.turns[name])

    def fields(self, kind: str) -> Any:
        return inspect.signature(getattr(self.old.node, kind)).parameters

    def end(self, name: str, text: str) -> None:
        new = self.turns[name]
        node = self.old.node.Node(
            name, new.parent, new.conversation, new.tenant, bytes([65 + TURNS.index(name)]) * 32,
            new.tokens + 2, 5, new.session_key,
        )  # fmt: skip
        self.turns[name] = node
        to, first = self.of(new.conversation)
        assert to.try_add_part(*first, name, 0, array("i", [4]), text[:1])
        to.finish(*first, node, 1, array("i", [5]), text[1:]).result()
        if hasattr(to, "note"):
            to.note(*first, name, '{"tool_calls":[]}').result()

    def part(self, name: str, text: str) -> None:
        to, first = self.of(self.turns[name].conversation)
        assert to.try_add_part(*first, name, 0, array("i", [7, 8]), text)


def write(old: types.SimpleNamespace, store: Any) -> None:
    """Write turns."""
    clock = itertools.count(1_760_000_000.0)
    time.time = lambda: next(clock)  # type: ignore[assignment]
    writer = Writer(old, store)
    asked = '[{"content":"Où est la mer?","role":"user"}]'
    writer.begin(TURNS[0], None, ADA, session_key="clé", messages=asked, record="{}",
                 title="Où est la mer?")  # fmt: skip
    writer.end(TURNS[0], "Là-bas")
    writer.begin(TURNS[1], TURNS[0], ADA, messages=asked)
    writer.end(TURNS[1], "étang")
    writer.begin(TURNS[2], TURNS[0], ADA, messages=asked, given="Une ")
    writer.end(TURNS[2], "île")
    writer.begin(TURNS[4], None, BOB, messages='[{"content":"Hi","role":"user"}]', title="Hi")
    writer.end(TURNS[4], "Hello")
    writer.begin(TURNS[3], TURNS[1], ADA, messages=asked)
    writer.part(TURNS[3], "à")
    to, first = writer.of(ADA)
    node = writer.turns[TURNS[1]]
    if "file" in inspect.signature(to.add_snapshot).parameters:
        file = f"{TURNS[1]}.00000000.session"
        if hasattr(to, "new_file"):
            file = to.new_file(*first, node.id)
        to.add_snapshot(*first, node, file, 7)
    else:
        path = Path(store.snapshot_path(node.id))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"session")
        to.add_snapshot(node)


def sqlite_dump(old: types.SimpleNamespace, folder: Path) -> str:
    store = old.sqlite.SqliteStore.open(folder, MODEL)
    write(old, store)
    store.close()
    connection = sqlite3.connect(folder / "turns.sqlite")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return f"PRAGMA user_version={version};\n" + "\n".join(connection.iterdump())


def postgres_dump(old: types.SimpleNamespace, folder: Path) -> str:
    is_below = "server" in old.base
    package = "sinkstream.server.conversations" if is_below else "sinkstream.cluster"
    opened = importlib.import_module(f"{package}.postgres_store").PostgresStore
    files = importlib.import_module(f"{old.base}.snapshot_files").SnapshotFolder
    from tests.python.cluster.postgres import PostgresServer, programs

    found = programs()
    assert found is not None
    server = PostgresServer(found)
    try:
        address = server.new_database("old")
        is_given = inspect.signature(opened.open).parameters["files"].annotation == "SnapshotFiles"
        given = files(folder) if is_given else lambda _: files(folder)
        store = opened.open(address, MODEL, files=given)
        write(old, store)
        store.close()
        dump = subprocess.run(
            [found / "pg_dump", "--inserts", "--no-owner", address],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    finally:
        server.close()
    lines = (line for line in dump.splitlines() if line and not line.startswith(("--", "\\")))
    return "\n".join(line for line in lines if not line.startswith(("SET ", "SELECT pg_catalog.")))


def main() -> None:
    old = modules(sys.argv[1])
    dump = postgres_dump if sys.argv[2:] == ["postgres"] else sqlite_dump
    with tempfile.TemporaryDirectory() as folder:
        print(dump(old, Path(folder) / "store"))


if __name__ == "__main__":
    main()
