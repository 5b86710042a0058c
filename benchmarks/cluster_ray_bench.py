"""Measures a real Ray Serve on this host: conversations while replicas come and go, or are killed.

    BENCH_OUT=folder python benchmarks/cluster_ray_bench.py --conversations 64 --kills 20

A tiny model with random weights, 2 replicas on one store, one host. Needs the extras `serve` and
`ray`.

- `scale`: all conversations go on while the replicas change from 2 to 3 and back to 2.
  `lost_turns`: acknowledged messages that the store does not have in their order. `foreign_texts`:
  replies that differ from what the model gives without other clients; each conversation has its own
  words and seeds. `most_moves`: the most that one conversation moved, for each of the two changes.
  `sent_again`: refused requests.
- `kills`: the owner of a conversation is killed with SIGKILL in the middle of a stream, and the
  client sends its request again. `first_answer_s`: from the kill to the whole answer of another
  replica. `wrong_continuations`: answers that differ from the one before the kill.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from figures import quantile
from machine import ROOT, report

sys.path.insert(0, str(ROOT))

from tests.data import tiny
from tests.python.integrations.many_conversations import scale_up_and_down
from tests.python.integrations.ray_cluster import REPLICA, Cluster, ray_cluster, wait_until


def scale(cluster: Cluster, conversations: int, turns: int, scratch: Path) -> dict[str, Any]:
    """Return the figures of 2 → 3 → 2 replicas."""
    crowd = scale_up_and_down(
        cluster, conversations, turns, lambda phase: print(phase, file=sys.stderr)
    )
    all_of_them = crowd.conversations
    by_change = crowd.moves_by_change
    return {
        "conversations": conversations,
        "turns": sum(one.turns for one in all_of_them),
        "lost_turns": crowd.lost_turns(),
        "foreign_texts": crowd.foreign_texts(cluster.folder, scratch, cluster.load),
        "moved": [sum(map(bool, moves)) for moves in by_change],
        "most_moves": [max(moves) for moves in by_change],
        "states": dict(Counter(state for one in all_of_them for state in one.states)),
        "sent_again": dict(
            Counter(f"{status} {code}" for one in all_of_them for status, code in one.again)
        ),
        "slowest_turn_s": round(max(one.slowest_s for one in all_of_them), 2),
    }


def kills(cluster: Cluster, count: int) -> dict[str, Any]:
    """Return the figures of owners that are killed in the middle of a stream."""
    import http.client
    import json

    times, wrong, states = [], 0, Counter[str]()
    for number in range(count):
        session = f"killed {number}"
        hello = [{"role": "user", "content": f"canary {number}"}]
        told = cluster.chat(hello, session).json["choices"][0]["message"]
        messages = [*hello, told, {"role": "user", "content": "go on"}]
        fields = {"max_tokens": 12, "seed": number}
        expected = cluster.chat(messages, session, **fields).json["choices"][0]["message"]
        victim = cluster.pid_of(session)
        home = cluster.replica_of(session)
        body = {"messages": messages, "stream": True, "max_tokens": 1 << 40, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", cluster.http.port, timeout=30)
        headers = {"content-type": "application/json", "x-session-id": session}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        connection.getresponse().read(2000)
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        connection.close()
        answer = cluster.chat(messages, session, **fields)
        while answer.status != 200:
            time.sleep(0.05)
            answer = cluster.chat(messages, session, **fields)
        times.append(time.monotonic() - began)
        wrong += answer.json["choices"][0]["message"] != expected
        wrong += answer.headers[REPLICA] == home
        states[answer.json["usage"]["sinkstream"]["state"]] += 1
        wait_until(lambda: len(cluster.replicas()) == 2, "Ray has replaced it")
    return {
        "count": count,
        "wrong_continuations": wrong,
        "states": dict(states),
        "first_answer_s": {
            "p50": round(quantile(times, 0.5), 3),
            "largest": round(max(times), 3),
        },
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3, help="of each conversation, in each phase")
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tiny"
        tiny.write_folder(tiny.build("llama"), folder, shards=1)
        with ray_cluster(folder, f"{scratch}/store", replicas=2) as cluster:
            figures = {
                "ray": __import__("ray").__version__,
                "scale": scale(cluster, args.conversations, args.turns, Path(scratch)),
                "kills": kills(cluster, args.kills),
            }
    report("cluster_ray", figures)


if __name__ == "__main__":
    main()
