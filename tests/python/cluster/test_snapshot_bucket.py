"""Snapshots in an object store: a server of S3's protocol that keeps objects in memory."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.cluster import snapshot_bucket
from sinkstream.cluster.open_shared_store import SharedSettings, shared_conversations
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.snapshot_files import DOOMED_S
from tests.python.cluster.shared_stores import fence_of
from tests.python.cluster.test_loose_files import grow_older, lose_deletions
from tests.python.conversations.talk import OPENED, STILL, Chat, alone, path_ids

pytest.importorskip("obstore", reason="obstore is not installed")
pytest.importorskip("moto.server", reason="moto's server is not installed")

BUCKET = "s3://snapshots/of/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Give the address of a server of objects."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        address = ""
        for said in process.stderr:
            if "Running on http://" in said:
                address = said.split("Running on ")[1].strip()
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()
        assert address
        yield address
        process.kill()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    request = urllib.request.Request(f"{server}/snapshots", method="PUT")
    urllib.request.urlopen(request).read()
    return server


def keys(server: str) -> list[str]:
    with urllib.request.urlopen(f"{server}/snapshots?list-type=2") as answer:
        return re.findall("<Key>(.*?)</Key>", answer.read().decode())


def objects(server: str) -> int:
    return sum(key.startswith("of/conversations/resp_") for key in keys(server))


def replica(model: sinkstream.Model, folder: Path, name: str) -> Conversations:
    settings = SharedSettings(
        seats=1,
        maintenance_s=STILL,
        replay_tokens=0,
        saved_early=0,
        snapshot_tokens=1 << 40,
        replica=name,
        snapshots=BUCKET,
    )
    OPENED.append(shared_conversations(model, folder, settings))
    return OPENED[-1]


def test_another_replica_loads_what_this_one_has_saved(
    model: sinkstream.Model, tmp_path: Path, bucket: str
) -> None:
    one, two = replica(model, tmp_path, "one"), replica(model, tmp_path, "two")
    chat = Chat(one)
    for i in range(4):
        chat.say(f"{i}", seed=i)
    fence_of(one).park_all()
    assert objects(bucket) == 1
    chat.conversations = two
    reply = chat.say("On", seed=9)
    assert reply.facts.state == "loaded"
    assert reply.bits == alone(model, path_ids(two, reply.node)[:-8], 9)
    two.delete("", reply.facts.session)
    end = time.monotonic() + 20
    while objects(bucket):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_objects_of_a_deleted_conversation_are_deleted_after_a_kill(
    model: sinkstream.Model, tmp_path: Path, bucket: str
) -> None:
    one, two = replica(model, tmp_path, "one"), replica(model, tmp_path, "two")
    foreign = f"resp_{'a' * 32}.01234567.session"
    files: Any = one._store.files
    files._store.put(foreign, b"of another store")
    session = Chat(one).say("Hello").facts.session
    kept = Chat(one).say("Good day")
    fence_of(one).park_all()
    lose_deletions(one._store)
    one.delete("", session)
    assert objects(bucket) == 3
    grow_older(two._store, DOOMED_S)
    two._maintenance.run()
    end = time.monotonic() + 20
    while objects(bucket) > 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    left = {name.rpartition("/")[2] for name in keys(bucket)}
    assert left == {foreign, two._store.snapshot_of(kept.node)}
    files._store.delete(foreign)


def test_what_is_not_there_is_replayed(
    model: sinkstream.Model, tmp_path: Path, bucket: str
) -> None:
    one = replica(model, tmp_path, "one")
    chat = Chat(one)
    chat.say("Hello")
    fence_of(one).park_all()
    with one._store.files.reading("resp_none.session") as path:
        assert not Path(path).exists()
    (name,) = [file for (file,) in one._store.rows("SELECT file FROM snapshots")]
    one._store.files._delete(name, lambda *_: None)  # type: ignore[attr-defined]
    reply = chat.say("On", seed=1)
    assert reply.facts.state == "replayed"
    assert reply.bits == alone(model, path_ids(one, reply.node)[:-8], 1)


def test_a_bucket_that_is_not_there_is_refused(
    model: sinkstream.Model, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SharedSettings(replica="one", snapshots="s3://missing/path")
    with pytest.raises(StoreError, match="s3://missing/path must be a bucket that can be read"):
        shared_conversations(model, tmp_path, settings)


def test_a_bucket_that_does_not_answer_is_not_waited_for(
    model: sinkstream.Model, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_bucket, "_READ", timedelta(seconds=0.1))
    monkeypatch.setattr(snapshot_bucket, "_RETRY", timedelta(seconds=1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(StoreError, match="must be a bucket that can be read"):
            replica(model, tmp_path, "one")
        assert time.monotonic() - began < 8
