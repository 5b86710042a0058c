"""Servers killed 60 times: no acknowledged turn and no accepted response is lost.

Clients talk all the time, turn after turn and in the background, until their server is gone.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.python.cluster.shared_stores import SharedLocation
from tests.python.server.http.running_server import Running

ROOT = Path(__file__).parents[3]
RESPONSES = "/v1/responses"
KILLS = 30  # of each kind of store
GONE_S = 60.0  # after which the promises of a killed replica are broken


@dataclass
class Said:
    """What clients were told."""

    turns: dict[str, str] = field(default_factory=dict)
    """Ids and texts of replies that were complete."""
    accepted: set[str] = field(default_factory=set)
    """Ids of responses in the background."""
    wrong: list[str] = field(default_factory=list)
    """Answers that are neither a reply nor a reason to send the request again."""


class Server:
    """A process that serves a tiny model, and the clients that talk to it until it dies."""

    def __init__(self, model: Path, options: list[str]) -> None:
        command = [sys.executable, "-m", "sinkstream", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--window", "60", "--threads", "1", "--max-sequences", "3", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "SINKSTREAM_API_KEY"},
        )
        self.clients: list[threading.Thread] = []

    def wait(self) -> Running:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("Listening on http://127.0.0.1:"), line
        self.at = Running(int(line.rpartition(":")[2]), None)  # type: ignore[arg-type]
        return self.at

    def talk(self, said: Said, numbers: itertools.count[int]) -> None:
        """Let clients talk to it: two turn after turn, one in the background."""
        for work in (self._turns, self._turns, self._background):
            self.clients.append(threading.Thread(target=_until_gone, args=(work, said, numbers)))
            self.clients[-1].start()

    def _turns(self, said: Said, numbers: itertools.count[int]) -> None:
        previous = None
        for number in numbers:
            body = {"input": f"say {number}", "max_output_tokens": 5, "seed": number,
                    "ignore_eos": True, "previous_response_id": previous}  # fmt: skip
            answer = self.at.post(RESPONSES, body)
            if answer.status == 200:
                previous = answer.json["id"]
                said.turns[previous] = text_of(answer.json)
            elif answer.status not in (409, 429, 503):
                said.wrong.append(f"{answer.status} {answer.body!r}")

    def _background(self, said: Said, numbers: itertools.count[int]) -> None:
        for number in numbers:
            tokens = (3, 60, 600)[number % 3]
            body = {"input": f"say {number}", "max_output_tokens": tokens, "background": True,
                    "ignore_eos": True}  # fmt: skip
            answer = self.at.post(RESPONSES, body)
            if answer.status == 200:
                said.accepted.add(answer.json["id"])
            elif answer.status == 429:
                time.sleep(0.02)
            elif answer.status != 503:
                said.wrong.append(f"{answer.status} {answer.body!r}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for client in self.clients:
            client.join(60)
            assert not client.is_alive()
        self.clients.clear()


def _until_gone(work: Callable[..., None], said: Said, numbers: itertools.count[int]) -> None:
    try:
        work(said, numbers)
    except (OSError, HTTPException, json.JSONDecodeError):
        return  # not acknowledged


def text_of(response: Any) -> str:
    parts = (part for item in response["output"] for part in item.get("content", ()))
    return "".join(part["text"] for part in parts)


def losses(server: Running, said: Said) -> list[str]:
    """Return what a server no longer knows."""
    lost = list(said.wrong)
    for name, text in said.turns.items():
        answer = server.ask("GET", f"{RESPONSES}/{name}")
        if answer.status != 200 or text_of(answer.json) != text:
            lost.append(f"turn {name}: {answer.status} {answer.body[:200]!r}")
    for name in said.accepted:
        answer = server.ask("GET", f"{RESPONSES}/{name}")
        if answer.status != 200:
            lost.append(f"response {name}: {answer.status} {answer.body[:200]!r}")
    return lost


def run(model: Path, options: list[str], count: int, seed: int) -> tuple[Said, dict[str, int]]:
    """Kill servers; return what was said, and how the background responses ended."""
    source, said, numbers = random.Random(seed), Said(), itertools.count()
    servers = [Server(model, options) for _ in range(count)]
    try:
        for server in servers:
            server.wait()
            server.talk(said, numbers)
        seen = 0  # turns that were looked for on a server; at the end, all are again
        for _ in range(KILLS):
            time.sleep(source.uniform(0.1, 1.0))
            which = source.randrange(count)
            servers[which].kill()
            servers[which] = Server(model, options)
            servers[which].wait()
            new = dict(itertools.islice(said.turns.copy().items(), seen, None))
            assert losses(servers[-1 - which].at, Said(new, set(), said.wrong)) == []
            seen += len(new)
            servers[which].talk(said, numbers)
        for server in servers:  # what they have promised is kept once they are gone
            server.kill()
        servers = [Server(model, options)]
        at = servers[0].wait()
        assert losses(at, said) == []
        return said, _outcomes(at, said)
    finally:
        for server in servers:
            server.kill()


def _outcomes(server: Running, said: Said) -> dict[str, int]:
    deadline = time.monotonic() + GONE_S
    while True:
        counts: dict[str, int] = {}
        for name in said.accepted:
            status = server.ask("GET", f"{RESPONSES}/{name}").json["status"]
            counts[status] = counts.get(status, 0) + 1
        if not counts.keys() & {"queued", "in_progress"} or time.monotonic() > deadline:
            return counts
        time.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one server in a folder", "two servers in PostgreSQL"])
def test_nothing_acknowledged_is_lost_in_thirty_kills(
    tiny_folder: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    if kind == "one server in a folder":
        options, count = ["--store", str(tmp_path / "store")], 1
    else:
        location: SharedLocation = request.getfixturevalue("in_postgres")
        options = ["--store", str(location.address), "--snapshots", str(location.snapshots)]
        count = 2
    said, outcomes = run(tiny_folder("llama"), options, count, seed=count)
    print(f"{kind}: {KILLS} kills, {len(said.turns)} turns, {len(said.accepted)} responses in the "
          f"background: {outcomes}")  # fmt: skip
    assert len(said.turns) > KILLS
    assert len(said.accepted) > KILLS
    assert outcomes.keys() <= {"completed", "incomplete", "failed"}
