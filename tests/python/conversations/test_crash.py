"""A server killed at any moment: every acknowledged turn survives, and continues bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.canonical import hash_after
from sinkstream.conversations.running_turns import _PART_TOKENS
from tests.python.conversations.talk import (
    alone,
    ask,
    assistant,
    open_conversations,
    path_ids,
    user,
)

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("crashing.py")


def lines_of_a_killed_server(
    folder: Path, store: Path, seed: int, *, after_s: float = 0, dies_at: int = 0
) -> list[dict[str, Any]]:
    """Run a server until it dies at a token, or kill it after a while; return what it said."""
    command = [sys.executable, "-m", "tests.python.conversations.crashing"]
    with subprocess.Popen(
        [*command, str(folder), str(store), str(seed), str(dies_at)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as server:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline()) == {"ready": True}
        if dies_at == 0:  # meanwhile it may have to wait for this process to read
            time.sleep(after_s)
            server.send_signal(signal.SIGKILL)
        said = server.stdout.read().splitlines()
    assert server.returncode == -signal.SIGKILL
    return [json.loads(line) for line in said if line.endswith(b"}")]


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_survives_a_kill(
    model: sinkstream.Model, tiny_folder: Callable[[str], Path], tmp_path: Path, seed: int
) -> None:
    source = random.Random(seed)
    said: list[dict[str, Any]] = []
    for _ in range(2):  # the second server begins with what the first one left
        said += lines_of_a_killed_server(
            tiny_folder("llama"), tmp_path, seed, after_s=source.uniform(0.05, 1.5)
        )
    conversations = open_conversations(model, tmp_path)
    acknowledged = [line for line in said if "node" in line]
    begun = {line["begun"]: line for line in said if "begun" in line}
    store = conversations._store
    for line in acknowledged:
        node = store.node(line["node"])
        assert node is not None
        assert node.finish_reason == "length"
        assert store.ids_of(node.id).tolist()[-len(line["ids"]) :] == line["ids"]
    heads = {line["which"]: line["node"] for line in acknowledged}
    for seed, head in enumerate(heads.values()):
        reply = ask(conversations, [user("Are you there?")], previous=head, seed=seed)
        assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], seed)
    check_the_unfinished(model, said, begun, conversations)


def check_the_unfinished(
    model: sinkstream.Model,
    said: list[dict[str, Any]],
    begun: dict[str, dict[str, Any]],
    conversations: Any,
) -> None:
    """A turn that was running is kept in part, or was deleted because nothing was committed."""
    finished = {line["node"] for line in said if "node" in line}
    for name in begun:
        if name in finished:
            continue
        node = conversations._store.node(name)
        if node is None:  # how much that may be: the test below
            continue
        assert node.finish_reason in ("interrupted", "length")
        ids = conversations._store.ids_of(name).tolist()
        start = conversations._store.node(node.parent).tokens if node.parent else 0
        assert node.tokens == start + len(ids)
        again = ask(conversations, [user("Go on")], previous=name, seed=1)
        assert again.bits == alone(model, path_ids(conversations, again.node)[:-8], 1)


def test_an_interrupted_reply_is_found_by_the_text_that_was_committed(
    model: sinkstream.Model, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """It is hashed as if it had ended there, and loses less than a part."""
    said = lines_of_a_killed_server(tiny_folder("llama"), tmp_path, 0, dies_at=400)
    conversations = open_conversations(model, tmp_path)
    name = [line["begun"] for line in said if "begun" in line][-1]
    node = conversations._store.node(name)
    assert node is not None
    assert node.finish_reason == "interrupted"
    rows = conversations._store.rows(
        "SELECT text FROM parts WHERE node = ? ORDER BY number", [node.id]
    )
    ((before,),) = conversations._store.rows("SELECT before FROM nodes WHERE id = ?", [node.id])
    text = b"".join(row[0] for row in rows).decode()
    assert node.hash == hash_after(before, [assistant(text.rstrip())])
    assert node.tokens == len(path_ids(conversations, name))
    ((reads,),) = conversations._store.rows(
        "SELECT LENGTH(read_ids) / 4 FROM nodes WHERE id = ?", [name]
    )
    count = len(conversations._store.ids_of(name)) - reads
    (generated,) = [line["generated"] for line in said if "generated" in line]
    assert 400 - _PART_TOKENS < count <= generated
