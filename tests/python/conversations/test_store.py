"""The store on disk: who may read it, what it refuses, and what it forgets."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.database import TABLES, Writer, in_marks
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.fence import Fence
from sinkstream.conversations.node import Node, new_id
from sinkstream.conversations.promises import Promises
from sinkstream.conversations.sqlite_store import SqliteStore, SqliteWriteConnection
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import NotFound, TurnRequest
from sinkstream.errors import SessionBusy
from tests.python.conversations.stores import StoreLocation, begun, finish, writer_of
from tests.python.conversations.talk import (
    Chat,
    alone,
    ask,
    grow_old,
    open_conversations,
    options,
    path_ids,
    user,
)


@pytest.fixture
def store(location: StoreLocation) -> Store:
    return location.open()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_its_owner_may_read_it(model: sinkstream.Model, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        conversations = open_conversations(model, tmp_path / "a" / "store", snapshot_tokens=0)
        Chat(conversations).say("One")
        conversations._maintenance.run()
        paths = list((tmp_path / "a" / "store").rglob("*"))
        assert {mode(path) for path in paths if path.is_dir()} == {0o700}
        assert {mode(path) for path in paths if path.is_file()} == {0o600}
        names = {path.name for path in paths}
        assert {"lock", "turns.sqlite", "turns.sqlite-wal", "turns.sqlite-shm"} <= names
        assert any(name.endswith(".session") for name in names)
        assert mode(tmp_path / "a" / "store") == 0o700
        conversations.close()
    finally:
        os.umask(before)


def test_a_turn_is_found_only_when_it_is_finished(store: Store) -> None:
    new = begun()
    writer_of(store, new).begin(new)
    writer_of(store, new).forget(new_id("resp")).result()  # what was queued before is written now
    assert store.node(new.id) is None
    node = finish(store, new, [4, 5], b"h")
    assert store.node(new.id) == node
    assert store.find("ada", [b"h" * 32]) == [node]
    assert store.find("bob", [b"h" * 32]) == []
    assert store.ids_of(new.id).tolist() == [1, 2, 3, 4, 5]
    assert store.nodes_of(new.conversation) == [node]


def test_the_first_hash_that_is_a_turn_wins(store: Store) -> None:
    nodes = []
    for mark in (b"a", b"b"):
        new = begun()
        writer_of(store, new).begin(new)
        nodes.append(finish(store, new, [4], mark))
    hashes = [bytes([i % 250, i // 250]) * 16 for i in range(1200)]
    assert store.find("ada", [*hashes, b"b" * 32, b"a" * 32]) == [nodes[1]]
    assert store.find("ada", [*hashes, b"a" * 32, b"b" * 32]) == [nodes[0]]
    assert store.find("ada", hashes) == store.find("ada", []) == []


def test_parts_are_joined_in_their_order(store: Store) -> None:
    new = begun()
    writer_of(store, new).begin(new)
    for number in range(12):
        assert writer_of(store, new).try_add_part(new.id, number, array("i", [number + 10]), "x")
    node = Node(new.id, None, new.conversation, "ada", b"h" * 32, 16, 99)
    writer_of(store, new).finish(node, 12, array("i", [99]), "y").result()
    assert store.ids_of(new.id).tolist() == [1, 2, 3, *range(10, 22), 99]


def test_deleting_a_turn_deletes_all_that_follow_it_and_no_other(store: Store) -> None:
    root = begun()
    children = [begun(root.conversation, root.id) for _ in range(2)]
    grandchild = begun(root.conversation, children[0].id)
    for i, new in enumerate([root, *children, grandchild]):
        writer_of(store, new).begin(new)
        finish(store, new, [i + 4], bytes([i + 65]))
    writer_of(store, root).delete_tree(children[0].id).result()
    left = {node.id for node in store.nodes_of(root.conversation)}
    assert left == {root.id, children[1].id}
    assert store.ids_of(grandchild.id).tolist() == []
    writer_of(store, root).delete_tree(root.id).result()
    assert store.conversations("ada") == []


def test_a_deletion_reads_only_what_it_deletes(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = open_conversations(model, tmp_path)
    for number in range(12):
        ask(conversations, [user(f"Number {number}")])
    store, rows = conversations._store, []
    read = store.rows

    def counted(query: str, values: Any = ()) -> list[Any]:
        found = read(query, values)
        rows.extend(found)
        return found

    (_, (name, _), *_) = conversations._store.conversations("")
    monkeypatch.setattr(store, "rows", counted)
    conversations.delete("", name)
    assert len(rows) <= 3
    assert not store.has_conversation("", name)


def test_the_only_process_of_a_store_remembers_no_conversations(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    """They would be memory that grows with their number."""
    conversations = open_conversations(model, tmp_path)
    first = Chat(conversations)
    first.say("One")
    Chat(conversations).say("Two")
    first.say("Three")
    assert type(conversations.fence) is Fence
    assert vars(conversations.fence).keys() == {"store", "promises", "waiting"}


def test_no_request_makes_sqlite_read_a_whole_table(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, "model")
    read, scans = store.rows, []

    def explained(query: str, values: Any = ()) -> list[Any]:
        steps = [row[3].split() for row in read(f"EXPLAIN QUERY PLAN {query}", values)]
        scans.extend(query for step in steps if step[0] == "SCAN" and step[1] in TABLES)
        return read(query, values)

    store.rows = explained  # type: ignore[method-assign]
    store.node("a")
    store.state("a-settled")
    store.find("ada", [b"h" * 32])
    store.ids_of("a")
    store.text_of("ada", "a")
    store.conversations("ada")
    store.listed("ada", 9)
    store.listed("ada", 9, "sess_1")
    store.expired_conversations(0.0)
    Promises(store, "").find("ada", "resp_1")
    store.has_conversation("ada", "a")
    store.transcript("ada", "a")
    store.last_turn("ada", "a")
    store.snapshot_of("a")
    store.saved_tokens("a")
    store.session_of("a")
    store.unfinished_session("ada", "a")
    store.is_running("a")
    store.close()
    assert scans == []


def test_a_conversation_is_found_for_its_tenant_alone(store: Store) -> None:
    root = begun()
    turns = [root, begun(root.conversation, root.id)]
    for i, new in enumerate(turns):
        writer_of(store, root).begin(new)
        turns[i] = finish(store, new, [i + 4], bytes([i + 65]), writer_of(store, root))
    assert store.has_conversation("ada", root.conversation)
    assert not store.has_conversation("bob", root.conversation)
    assert not store.has_conversation("ada", root.id)
    assert store.last_turn("ada", root.conversation) == turns[1]
    assert store.last_turn("ada", root.id) == turns[0]
    assert store.last_turn("bob", root.conversation) is None


def test_deleted_text_is_not_left_in_the_file(tmp_path: Path) -> None:
    secret = "a canary in a mine"
    store = SqliteStore.open(tmp_path, "model")
    new = begun()
    writer_of(store, new).begin(new)
    node = Node(new.id, None, new.conversation, "ada", b"h" * 32, 4, 4)
    writer_of(store, new).finish(node, 0, array("i", [4]), secret).result()
    assert any(secret.encode() in path.read_bytes() for path in tmp_path.glob("turns.sqlite*"))
    writer_of(store, new).delete_all().result()
    store._writer.submit(lambda connection: None).result()  # the deletion has been cleaned up
    for path in tmp_path.glob("turns.sqlite*"):
        assert secret.encode() not in path.read_bytes(), path
    store.close()
    assert secret.encode() not in (tmp_path / "turns.sqlite").read_bytes()
    assert not (tmp_path / "turns.sqlite-wal").exists()


def test_a_write_that_fails_takes_no_other_along(store: Store) -> None:
    twice = begun()
    other = begun()
    writer_of(store, twice).begin(twice)
    writer_of(store, twice).try_add_part(
        twice.id, 0, array("i", [1]), ""
    )  # the part exists already
    writer_of(store, other).begin(other)
    node = finish(store, other, [4], b"o")
    assert store.node(other.id) == node
    failed = store._writer.submit(lambda connection: connection.execute("SELECT nothing"))
    with pytest.raises(StoreError, match=r"syntax error|does not exist"):
        failed.result()


# ---- refusals ------------------------------------------------------------------------------------


def refused(folder: Path, model: str = "model") -> str:
    with pytest.raises(StoreError) as caught:
        SqliteStore.open(folder, model)
    return str(caught.value)


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from sinkstream.conversations.sqlite_store import SqliteStore\n"
        "try: SqliteStore.open(Path(sys.argv[1]), 'model').close()\n"
        "except Exception as error: print(error)"
    )

    def other() -> str:
        run = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout

    store = SqliteStore.open(tmp_path, "model")
    assert "must be used by one server at a time" in other()
    assert "must be used by one server at a time" in refused(tmp_path)
    store.close()
    assert other() == ""


def test_a_store_of_another_model_is_refused(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path, "fingerprint a, sinks 4").close()
    text = refused(tmp_path, "fingerprint b, sinks 4")
    assert "must belong to this model and its settings, fingerprint b" in text
    assert "belongs to fingerprint a" in text
    SqliteStore.open(tmp_path, "fingerprint a, sinks 4").close()


def test_models_with_other_windows_are_other_models(
    model: sinkstream.Model, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    open_conversations(model, tmp_path).close()
    with (
        sinkstream.load(tiny_folder("llama"), sinks=4, window=61, threads=1) as other,
        pytest.raises(StoreError, match=r"window 61, template .* but belongs to"),
    ):
        open_conversations(other, tmp_path)


def damage(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "turns.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("PRAGMA user_version=7", "must have a version from 1 to 6, .* but has version 7"),
        ("DROP TABLE parts", "must have a table `parts` with the columns .* but has none"),
        ("ALTER TABLE nodes RENAME COLUMN hash TO mash", "a table `nodes` with the columns"),
        ("DELETE FROM meta", "must belong to this model"),
    ],
)
def test_a_store_of_another_form_is_refused(tmp_path: Path, statement: str, text: str) -> None:
    SqliteStore.open(tmp_path, "model").close()
    damage(tmp_path, statement)
    with pytest.raises(StoreError, match=text):
        SqliteStore.open(tmp_path, "model")


def overwritten(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize("harm", [overwritten, cut])
def test_a_corrupt_store_is_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    SqliteStore.open(tmp_path, "model").close()
    harm(tmp_path / "turns.sqlite")
    assert "must be a sinkstream store, but SQLite reports" in refused(tmp_path)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "must be a folder, but is a file" in refused(tmp_path / "file")
    assert "must be a writable folder" in refused(tmp_path / "file" / "below")


def test_a_read_only_store_is_refused(tmp_path: Path) -> None:
    """Root may write anywhere, so the file is replaced by one that cannot be opened for writing."""
    SqliteStore.open(tmp_path, "model").close()
    (tmp_path / "turns.sqlite").unlink()
    (tmp_path / "turns.sqlite").mkdir()
    assert "must be a writable folder" in refused(tmp_path)


def test_a_full_store_fails_the_turn_and_keeps_what_it_had(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    chat.say("One")
    assert isinstance(conversations._store, SqliteStore)
    connection = conversations._store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for i in range(200):
            chat.branch(chat.messages).say("word " * 100, seed=i)

    with pytest.raises(StoreError, match=r"must be on a disk with free space|was not written"):
        fill()
    connection.execute("PRAGMA max_page_count=1000000")
    reply = chat.say("Two", seed=1)
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 1)
    conversations.close()


# ---- snapshots -----------------------------------------------------------------------------------


def parked(model: sinkstream.Model, folder: Path) -> Chat:
    """Hold a conversation whose only state is a snapshot."""
    conversations = open_conversations(model, folder, replay_tokens=0, park_s=0.0)
    chat = Chat(conversations)
    for i in range(5):
        chat.say(f"Message {i}", seed=i)
    conversations._maintenance.run()
    return chat


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.session"))


@pytest.mark.parametrize("harm", ["missing", "damaged", "exchanged"])
def test_a_snapshot_that_is_not_its_turns_is_replayed_instead(
    model: sinkstream.Model, tmp_path: Path, harm: str
) -> None:
    chat = parked(model, tmp_path / "one")
    conversations = chat.conversations
    (path,) = snapshots(tmp_path / "one")
    if harm == "missing":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    else:  # the file of another conversation, whole
        other = Chat(conversations)
        other.say("Another client's secret")
        conversations._maintenance.run()
        (theirs,) = [each for each in snapshots(tmp_path / "one") if each != path]
        shutil.copy(theirs, path)
    reply = chat.say("Next", seed=9)
    assert reply.facts.state == "replayed"
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 9)
    conversations.close()


def test_files_without_a_row_and_rows_without_a_file_are_deleted_at_start(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    chat = parked(model, tmp_path)
    chat.conversations.close()
    (path,) = snapshots(tmp_path)
    node_id = path.name.partition(".")[0]
    orphans = [
        path.with_name(f"{node_id}.00000000.session"),
        path.with_name(f".{node_id}.00.sinkstream-abcdefgh.part"),
    ]
    for orphan in orphans:
        orphan.write_bytes(b"x")
    SqliteStore.open(tmp_path, _model_of(tmp_path)).close()
    assert [each for each in tmp_path.rglob("*") if each.is_file() and each in orphans] == []
    assert snapshots(tmp_path) == [path]
    path.unlink()
    store = SqliteStore.open(tmp_path, _model_of(tmp_path))
    assert list(store.oldest_snapshots()) == []
    store.close()


def _model_of(folder: Path) -> str:
    connection = sqlite3.connect(folder / "turns.sqlite")
    (model,) = connection.execute("SELECT value FROM meta WHERE key = 'model'").fetchone()
    connection.close()
    return str(model)


# ---- age, size, deletion -------------------------------------------------------------------------


def test_conversations_expire_by_their_last_use(model: sinkstream.Model, tmp_path: Path) -> None:
    conversations = open_conversations(model, tmp_path, ttl_s=3600, snapshot_tokens=0)
    old, young = Chat(conversations), Chat(conversations)
    gone = old.say("Old")
    young.say("Young")
    grow_old(conversations, 3601)
    young.say("Still here", seed=1)
    conversations._maintenance.run()
    assert len(conversations._store.conversations("")) == 1
    assert young.say("On").facts.state == "resident"
    assert old.branch(old.messages).say("On").facts.state == "new"
    with pytest.raises(NotFound):
        ask(conversations, [user("On")], previous=gone.node)
    conversations.close()


def test_beyond_the_quota_snapshots_go_before_conversations(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, snapshot_tokens=0)
    chats = [Chat(conversations) for _ in range(3)]
    for i, chat in enumerate(chats):
        chat.say(f"I am {i}")
        conversations._maintenance.run()
    usage = conversations._store.usage()
    assert len(snapshots(tmp_path)) == 3
    conversations.close()
    most = usage.transcripts + usage.snapshots // 2
    conversations = open_conversations(model, tmp_path, max_bytes=most)
    conversations._maintenance.run()
    assert len(snapshots(tmp_path)) == 1  # the newest
    assert len(conversations._store.conversations("")) == 3
    chat = chats[0].branch(chats[0].messages)
    chat.conversations = conversations
    assert chat.say("Two").facts.state == "replayed"
    conversations.close()
    conversations = open_conversations(model, tmp_path, max_bytes=0)
    conversations._maintenance.run()
    assert snapshots(tmp_path) == []
    assert conversations._store.conversations("") == []
    conversations.close()


def test_a_tenant_keeps_its_latest_conversations(model: sinkstream.Model, tmp_path: Path) -> None:
    conversations = open_conversations(model, tmp_path, max_conversations=2)
    sessions = [ask(conversations, [user(f"{i}")], tenant="ada").facts.session for i in range(4)]
    bobs = ask(conversations, [user("x")], tenant="bob").facts.session
    conversations._maintenance.run()
    assert [name for name, _ in conversations._store.conversations("ada")] == sessions[:1:-1]
    assert [name for name, _ in conversations._store.conversations("bob")] == [bobs]
    conversations.close()


@pytest.mark.parametrize("by", ["node", "session"])
def test_what_is_deleted_is_gone(model: sinkstream.Model, tmp_path: Path, by: str) -> None:
    conversations = open_conversations(model, tmp_path, snapshot_tokens=0)
    chat, other = Chat(conversations), Chat(conversations)
    first = chat.say("One")
    second = chat.say("Two", seed=1)
    kept = other.say("Kept")
    conversations._maintenance.run()
    name = first.node if by == "node" else first.facts.session
    for stranger in ("bob", "x"):
        with pytest.raises(NotFound):
            conversations.delete(stranger, name)
    conversations.delete("", name)
    for node in (first.node, second.node):
        with pytest.raises(NotFound):
            ask(conversations, [user("x")], previous=node)
    with pytest.raises(NotFound):
        conversations.delete("", name)
    assert chat.branch(chat.messages).say("Three").facts.state == "new"
    assert [path.name.partition(".")[0] for path in snapshots(tmp_path)] == [kept.node]
    assert other.say("More").facts.state == "resident"
    conversations.close()


def test_a_running_conversation_is_not_deleted(conversations: Conversations) -> None:
    turn: Any = conversations.begin(TurnRequest("", [user("a")], options(1, 10**5)))
    next(turn.stream)
    with pytest.raises((SessionBusy, NotFound)):
        conversations.delete("", turn.facts.session)
    turn.stream.close()
    turn.end()
    conversations.delete("", turn.facts.session)


# ---- writes that fail, and deletions at a bad moment ---------------------------------------------


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_threads_that_have_ended_keep_no_file_open(store: Store) -> None:
    def read_in_a_thread() -> None:
        thread = threading.Thread(target=store.node, args=("resp_1",))
        thread.start()
        thread.join()

    read_in_a_thread()
    before = open_files()
    for _ in range(20):
        read_in_a_thread()
    assert open_files() < before + 20  # a pool of PostgreSQL may open some meanwhile


def test_a_turn_is_not_acknowledged_without_its_beginning(store: Store) -> None:
    new = begun(parent=new_id("resp"))  # deleted meanwhile
    writer_of(store, new).begin(new)
    assert writer_of(store, new).try_add_part(new.id, 0, array("i", [4]), "a")
    node = Node(new.id, new.parent, new.conversation, "ada", b"h" * 32, 5, 5)
    with pytest.raises(StoreError, match="was not written"):
        writer_of(store, new).finish(node, 1, array("i", [5]), "b").result()
    assert store.conversations("ada") == []
    assert store.rows("SELECT * FROM parts") == []


def test_a_turn_is_not_acknowledged_without_one_of_its_parts(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, "model")
    new = begun()
    writer_of(store, new).begin(new)
    for number in (0, 2):  # the write of the second one has failed
        assert writer_of(store, new).try_add_part(new.id, number, array("i", [number + 4]), "x")
    node = Node(new.id, None, new.conversation, "ada", b"h" * 32, 7, 7)
    with pytest.raises(StoreError, match="was not written"):
        writer_of(store, new).finish(node, 3, array("i"), "").result()
    store.close()
    store = SqliteStore.open(tmp_path, "model")  # it ends before the gap
    found = store.node(new.id)
    assert found is not None
    assert (found.tokens, found.last_id, found.finish_reason) == (4, 4, "interrupted")
    assert store.ids_of(new.id).tolist() == [1, 2, 3, 4]
    store.close()


@pytest.mark.parametrize("turns", [1, 2])
def test_a_conversation_that_is_deleted_while_a_turn_begins_is_not_read_in_part(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    chat = Chat(conversations)
    for i in range(turns):
        chat.say(f"{i}")
    states = conversations._restorer
    assert states.residency.park_idle()
    after = states.after

    def deleted_first(node: Node, following: Any, salt: str, **how: bool) -> Any:
        writer = conversations.fence.held(node.conversation)
        assert writer is not None
        writer.delete_all().result()  # as another request may
        return after(node, following, salt, **how)

    monkeypatch.setattr(states, "after", deleted_first)
    with pytest.raises(NotFound, match="was deleted"):
        chat.say("On")
    assert states.residency.all() == []


class Failing:
    """A connection whose first commit fails, and cannot be taken back at once."""

    def __init__(self) -> None:
        self.failures = 3
        self.in_transaction = False

    def execute(self, statement: str) -> None:
        if statement in ("COMMIT", "ROLLBACK") and self.failures > 0:
            self.failures -= 1
            raise sqlite3.OperationalError("disk I/O error")
        if statement.startswith("BEGIN") and self.in_transaction:
            raise sqlite3.OperationalError("within a transaction")
        self.in_transaction = statement.startswith("BEGIN")


def test_the_writer_survives_a_transaction_that_cannot_be_taken_back(tmp_path: Path) -> None:
    writer = Writer(SqliteWriteConnection(Failing(), tmp_path))  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        writer.submit(lambda connection: None).result(10)
    writer.submit(lambda connection: None).result(10)
    writer.close()


def test_a_part_never_waits_for_room(store: Store) -> None:
    """It is given from the event loop; a thread that waits for room holds the lock."""
    tried: list[bool] = []
    writer = ConversationWriter(store, "sess_1")
    part = threading.Thread(
        target=lambda: tried.append(writer.try_add_part("resp_1", 0, array("i", [1]), "")),
        daemon=True,
    )
    with store._writer._lock:
        part.start()
        part.join(5)
        assert tried == [False]


def test_lists_of_any_length_need_few_statements() -> None:
    seen = set()
    for count in range(1, 1200):
        groups = list(in_marks(range(count), 16))
        values = [value for _, some in groups for value in some]
        assert sorted(set(values)) == list(range(count))
        assert [marks.count("?") for marks, _ in groups] == [len(some) for _, some in groups]
        seen |= {marks for marks, _ in groups}
    assert len(seen) == 10


def test_a_closed_store_is_not_read(location: StoreLocation) -> None:
    """Another process may use it."""
    store = location.open()
    new = begun()
    writer_of(store, new).begin(new)
    finish(store, new, [4], b"a")
    assert store.node(new.id) is not None
    store.close()
    reads: list[Callable[[], object]] = [
        lambda: store.node(new.id),
        lambda: store.transcript("ada", new.id),
        store.usage,
        lambda: writer_of(store, new).note(new.id, ""),
    ]
    for read in reads:
        with pytest.raises(StoreError, match=r"^store: the store is closed\.$"):
            read()


def test_a_read_that_ends_while_its_store_is_closed_leaves_no_connection(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, "model")

    class Readers(list[sqlite3.Connection]):
        def append(self, reader: sqlite3.Connection) -> None:
            store.close()
            super().append(reader)

    store._readers = Readers()
    with store._reader() as reader:
        pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        reader.execute("SELECT 1")
