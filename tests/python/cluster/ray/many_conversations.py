"""Conversations that go on while the cluster changes, each with words that no other one has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sinkstream
from tests.python.cluster.ray.ray_cluster import REPLICA, Cluster
from tests.python.server.http.running_server import Answered

SAMPLING = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0}
_CLIENTS = 8
_TRIES = 20


@dataclass
class Conversation:
    """One client's conversation, as its client sees it."""

    number: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)
    """Of each turn."""
    states: list[str] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    nodes: list[str] = field(default_factory=list)
    """Of its turns."""
    again: list[tuple[int, str]] = field(default_factory=list)
    """Requests that were refused or cut off, and sent again: status and code."""
    slowest_s: float = 0.0

    @property
    def turns(self) -> int:
        return len(self.replicas)

    @property
    def moves(self) -> int:
        return sum(a != b for a, b in zip(self.replicas, self.replicas[1:], strict=False))

    def canary(self, turn: int) -> str:
        return f"canary {self.number} {turn}"

    def ask(self, cluster: Cluster) -> None:
        """Take one turn; send it again if the server asks for that, or the connection breaks."""
        asked = [*self.messages, {"role": "user", "content": self.canary(self.turns)}]
        began = time.monotonic()
        for _ in range(_TRIES):
            seed = self.number * 1000 + self.turns
            try:
                answer = cluster.chat(asked, f"conversation {self.number}", seed=seed, **SAMPLING)
            except OSError as error:
                self.again.append((0, type(error).__name__))
            else:
                if answer.status == 200:
                    break
                self.again.append((answer.status, _code(answer)))
            time.sleep(0.2)
        assert answer.status == 200, answer.body
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.messages = [*asked, answer.json["choices"][0]["message"]]
        self.replicas.append(answer.headers[REPLICA])
        own = answer.json["usage"]["sinkstream"]
        self.states.append(own["state"])
        self.sessions.add(own["session"])
        self.nodes.append(own["node"])

    @property
    def texts(self) -> list[str]:
        """Return what was said, by both sides."""
        return [message["content"] for message in self.messages]


def _code(answer: Answered) -> str:
    """Return the error's code; "" if Ray's proxy has answered in place of a replica."""
    is_ours = answer.headers.get("content-type") == "application/json"
    return str(answer.error["code"]) if is_ours else ""


class Crowd:
    """Conversations that take turns all the time, in a few threads."""

    def __init__(self, cluster: Cluster, numbers: range, pause_s: float = 0.0) -> None:
        """Give each number a conversation; each thread pauses after a turn of all of its own."""
        self.conversations = [Conversation(number) for number in numbers]
        self.moves_by_change: list[list[int]] = []
        """Of each conversation, for each change of the number of replicas."""
        self._cluster = cluster
        self._pause_s = pause_s
        self._stop = threading.Event()

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Let them talk during the block; their errors are raised at its end."""
        with ThreadPoolExecutor(_CLIENTS) as pool:
            shares = [self.conversations[start::_CLIENTS] for start in range(_CLIENTS)]
            tasks = [pool.submit(self._talk, share) for share in shares]
            try:
                yield
            finally:
                self._stop.set()
            for task in tasks:
                task.result()

    def wait_for_turns(self, more: int) -> None:
        """Wait until each conversation has had `more` further turns."""
        wanted = [one.turns + more for one in self.conversations]
        end = time.monotonic() + 300
        while any(one.turns < most for one, most in zip(self.conversations, wanted, strict=True)):
            assert time.monotonic() < end, "the conversations do not go on"
            time.sleep(0.1)

    def _talk(self, share: list[Conversation]) -> None:
        while not self._stop.is_set():
            for one in share:
                one.ask(self._cluster)
            self._stop.wait(self._pause_s)

    def lost_turns(self) -> int:
        """Return how many acknowledged turns the store does not have, with what both sides said."""
        return sum(self._lost_turns(one) for one in self.conversations)

    def _lost_turns(self, one: Conversation) -> int:
        kept = {}
        for session in one.sessions:
            turns = self._cluster.http.ask("GET", f"/v1/sessions/{session}/turns").json["data"]
            kept |= {turn["id"]: [said["content"] for said in turn["messages"]] for turn in turns}
        said = zip(one.texts[::2], one.texts[1::2], strict=True)
        return sum(
            kept.get(node) != list(texts) for node, texts in zip(one.nodes, said, strict=True)
        )

    def foreign_texts(self, folder: Path, store: Path, load: dict[str, Any]) -> int:
        """Return how many replies are not those that the model gives without any other client."""
        return sum(
            said != alone
            for one in self.conversations
            for said, alone in zip(one.texts[1::2], _alone(one, folder, store, load), strict=True)
        )


def _alone(one: Conversation, folder: Path, store: Path, load: dict[str, Any]) -> Iterator[str]:
    from sinkstream.conversations.conversations import Conversations
    from sinkstream.conversations.turns import TurnRequest

    with sinkstream.load(folder, **load) as model:
        kept = Conversations(model, store / f"alone {one.number}")
        node = None
        for turn in range(one.turns):
            message = {"role": "user", "content": one.canary(turn)}
            options: Any = {**SAMPLING, "seed": one.number * 1000 + turn}
            begun = kept.begin(TurnRequest("", [message], options, previous=node))
            text = begun.stream.result().text
            node = begun.end().node
            yield text
        kept.close()


def scale_up_and_down(
    cluster: Cluster, count: int, turns: int, between: Callable[[str], None]
) -> Crowd:
    """Let `count` conversations go on while there are 2, 3 and again 2 replicas."""
    crowd = Crowd(cluster, range(count))
    with crowd.talking():
        crowd.wait_for_turns(turns)
        for replicas in (3, 2):
            between(f"{replicas} replicas")
            before = [one.moves for one in crowd.conversations]
            cluster.deploy(replicas)
            crowd.wait_for_turns(turns)
            moves = [one.moves - was for one, was in zip(crowd.conversations, before, strict=True)]
            crowd.moves_by_change.append(moves)
    return crowd
