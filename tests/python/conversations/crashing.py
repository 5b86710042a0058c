"""A server that dies: a subprocess that talks until it is killed, and says what was acknowledged.

Arguments: the model's folder, the store's folder, the seed, and after how many tokens of a long
reply it dies by itself, or 0. Each acknowledged turn is a line of JSON
on standard output; so is each piece of the reply that is running.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.turns import TurnRequest
from tests.python.conversations.talk import SINKS, WINDOW, open_conversations, options, user


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def wait_for_a_part(conversations: Conversations, node: str) -> None:
    deadline = time.monotonic() + 120
    while not conversations._store.rows("SELECT 1 FROM parts WHERE node = ?", [node]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def main() -> None:
    folder, store, seed, dies_at = (
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    model = sinkstream.load(folder, sinks=SINKS, window=WINDOW, threads=1, max_sequences=3)
    # Maintenance works all the time, so that death also meets snapshots.
    conversations = open_conversations(
        model, store, maintenance_s=0.01, snapshot_tokens=20, park_s=0.05, replay_tokens=20
    )
    heads: list[str | None] = [None, None, None]
    say(ready=True)
    for step in range(100_000):
        which = (step + seed) % len(heads)
        tokens = 600 if step % 3 == 2 else 8
        turn = conversations.begin(
            TurnRequest("", [user(f"Step {step}")], options(step, tokens), heads[which])
        )
        say(begun=turn.facts.node, which=which, parent=heads[which], step=step)
        count = 0
        for event in turn.stream.events():
            if isinstance(event, sinkstream.Token):
                count += 1
                if count % 50 == 0:
                    say(read=count)
                if count == dies_at and tokens > dies_at:
                    wait_for_a_part(conversations, turn.facts.node)
                    say(generated=turn.stream.stats.generated_tokens)
                    os.kill(os.getpid(), signal.SIGKILL)
        end = turn.end()
        heads[which] = end.node
        say(node=end.node, which=which, ids=turn.stream.result().token_ids)


main()
