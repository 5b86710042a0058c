"""Measures a real Ray Serve on this host: conversations while replicas come and go, or are killed.

    BENCH_OUT=folder python benchmarks/cluster_ray_bench.py --conversations 64 --kills 100

A tiny model with random weights, 2 replicas on one store, one host. Needs the extras `serve` and
`ray`.

- `scale`: all conversations go on while the replicas change from 2 to 3 and back to 2.
  `lost_turns`: acknowledged turns that the store does not have with their texts. `foreign_texts`:
  replies that differ from what the model gives without other clients; each conversation has its own
  words and seeds. `most_moves`: the most that one conversation moved, for each of the two changes.
  `sent_again`: refused requests.
- `kills`: the owner of a conversation is killed with SIGKILL in the middle of a stream, and the
  client sends its request again, while other conversations go on. `first_answer_s`: from the kill
  to the whole answer of another replica; `answers_after_2_s`: how many took longer.
  `wrong_continuations`: answers that differ from the one before the kill, or come from the replica
  that was killed. `lost_turns`, `foreign_texts` and `sent_again` as above, of all conversations.
  Ray replaces a replica before the next one is killed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import quantile
from machine import ROOT, report

sys.path.insert(0, str(ROOT))

from tests.data import tiny
from tests.python.cluster.ray.many_conversations import Crowd, scale_up_and_down
from tests.python.cluster.ray.ray_cluster import REPLICA, Cluster, ray_cluster, wait_until
from tests.python.server.http.running_server import Answered

TALKING = 8  # conversations that go on while owners of others are killed
PAUSE_S = 2.0  # of each of them, between two turns


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


def kills(cluster: Cluster, count: int, first: int, scratch: Path) -> dict[str, Any]:
    """Return the figures of owners that are killed in the middle of a stream."""
    crowd = Crowd(cluster, range(first, first + TALKING), PAUSE_S)
    with crowd.talking():
        crowd.wait_for_turns(1)
        losses = [lose_owner(cluster, number) for number in range(count)]
        crowd.wait_for_turns(1)
    times = [one.first_answer_s for one in losses]
    again = Counter(f"{status} {code}" for one in crowd.conversations for status, code in one.again)
    return {
        "count": count,
        "acknowledged_turns": 3 * count + sum(one.turns for one in crowd.conversations),
        "lost_turns": sum(one.lost_turns for one in losses) + crowd.lost_turns(),
        "wrong_continuations": sum(one.is_wrong for one in losses),
        "foreign_texts": crowd.foreign_texts(cluster.folder, scratch, cluster.load),
        "states": dict(Counter(one.state for one in losses)),
        "sent_again": dict(again),
        "first_answer_s": {
            "p50": round(quantile(times, 0.5), 3),
            "p99": round(quantile(times, 0.99), 3),
            "largest": round(max(times), 3),
        },
        "answers_after_2_s": sum(taken > 2 for taken in times),
    }


@dataclass(frozen=True)
class Loss:
    """What became of a conversation whose owner was killed."""

    first_answer_s: float
    is_wrong: bool
    lost_turns: int
    state: str


def lose_owner(cluster: Cluster, number: int) -> Loss:
    """Kill the owner of a conversation while it streams, and ask for its last turn again."""
    session = f"killed {number}"
    hello = [{"role": "user", "content": f"killed canary {number}"}]
    told = cluster.chat(hello, session)
    messages = [*hello, _reply(told), {"role": "user", "content": "go on"}]
    fields = {"max_tokens": 12, "seed": number}
    expected = cluster.chat(messages, session, **fields)
    victim, home = cluster.pid_of(session), cluster.replica_of(session)
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
    first_answer_s = time.monotonic() - began
    loss = Loss(
        first_answer_s,
        _reply(answer) != _reply(expected) or answer.headers[REPLICA] == home,
        lost_turns(cluster, [told, expected, answer]),
        answer.json["usage"]["sinkstream"]["state"],
    )
    wait_until(lambda: len(cluster.replicas()) == 2, "Ray has replaced it", within_s=600)
    return loss


def lost_turns(cluster: Cluster, answers: list[Answered]) -> int:
    """Return how many turns of a conversation the store does not have with their replies."""
    own = [answer.json["usage"]["sinkstream"] for answer in answers]
    turns = cluster.http.ask("GET", f"/v1/sessions/{own[0]['session']}/turns").json["data"]
    kept = {turn["id"]: turn["messages"][-1]["content"] for turn in turns}
    return sum(
        kept.get(facts["node"]) != _reply(answer)["content"]
        for facts, answer in zip(own, answers, strict=True)
    )


def _reply(answer: Answered) -> dict[str, Any]:
    message: dict[str, Any] = answer.json["choices"][0]["message"]
    return message


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3, help="of each conversation, in each phase")
    parser.add_argument("--kills", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tiny"
        tiny.write_folder(tiny.build("llama"), folder, shards=1)
        with ray_cluster(folder, f"{scratch}/store", replicas=2) as cluster:
            figures = {
                "ray": __import__("ray").__version__,
                "scale": scale(cluster, args.conversations, args.turns, Path(scratch)),
                "kills": kills(cluster, args.kills, args.conversations, Path(scratch)),
            }
    report("cluster_ray", figures)


if __name__ == "__main__":
    main()
