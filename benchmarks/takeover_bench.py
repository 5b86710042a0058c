"""Kills the owner of a conversation in the middle of a reply, again and again; another goes on.

    python benchmarks/takeover_bench.py --kills 100

Two server processes use one store: a folder, or PostgreSQL with --store. Each round, a client talks
to one of them and reads part of a streamed reply; then that process is killed (SIGKILL), and the
client sends the same request to the other one, which it never used for the conversation before. The
killed one starts again, and the next round kills the other.

Counted are acknowledged turns that are missing, and replies whose tokens or log-probabilities are
not those of an undisturbed conversation in this process. Reported is the time from the kill to the
first text from the other server. The model is a tiny random one, or --model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import quantile
from machine import report
from server.process import Server, ready

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.turns import TurnRequest

SINKS, WINDOW, TOKENS = 4, 60, 24
LONG = 1 << 30  # tokens of the reply that is cut off

Bits = list[tuple[str, float]]


@dataclass
class Replicas:
    """Two servers on one store."""

    model: str
    options: list[str]
    servers: list[Server] = field(default_factory=list)

    def command(self, index: int) -> list[str]:
        return [
            sys.executable, "-m", "sinkstream", "serve", self.model, "--port", "0", "--replica",
            f"replica-{index}", "--sinks", str(SINKS), "--window", str(WINDOW), "--threads", "1",
            "--max-sequences", "2", *self.options,
        ]  # fmt: skip

    def start(self, index: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(index), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def wait(self, process: subprocess.Popen[str]) -> Server:
        assert process.stdout is not None
        said = process.stdout.readline()  # "Listening on http://127.0.0.1:PORT"
        return ready(Server(int(said.rsplit(":", 1)[1]), process))


def ask(server: Server, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, Any]:
    """Send a chat request; return its connection and the response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    data = json.dumps(body)
    connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def chunks(response: Any) -> Iterator[dict[str, Any]]:
    """Yield the choices of a streamed reply that have tokens."""
    for raw in response:
        if raw.startswith(b"data: {"):
            chunk = json.loads(raw[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            choice = chunk["choices"][0]
            if choice["logprobs"] and choice["logprobs"]["content"]:
                yield choice


def bits_of(logprobs: dict[str, Any]) -> Bits:
    return [(one["token"], one["logprob"]) for one in logprobs["content"]]


@dataclass
class Talk:
    """A client's conversation, and an undisturbed one to compare it with."""

    reference: Conversations
    messages: list[dict[str, str]] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    session: str = ""
    different: int = 0
    missing: int = 0

    def body(self, text: str, seed: int, tokens: int) -> dict[str, Any]:
        return {
            "model": "tiny", "messages": [*self.messages, {"role": "user", "content": text}],
            "seed": seed, "temperature": 1.0, "max_tokens": tokens, "ignore_eos": True,
            "logprobs": True, "stream": True,
        }  # fmt: skip

    def say(self, server: Server, text: str, seed: int) -> float:
        """Send a message, compare the reply; return when its first text came."""
        connection, response = ask(server, self.body(text, seed, TOKENS))
        if response.status != 200:
            raise RuntimeError(response.read().decode())
        first, reply, bits = 0.0, "", Bits()
        for choice in chunks(response):
            first = first or time.monotonic()
            reply += choice["delta"]["content"]
            bits += bits_of(choice["logprobs"])
        connection.close()
        self.nodes.append(response.headers["x-sinkstream-node"])
        self.session = response.headers["x-sinkstream-session"]
        self.compare(text, seed, reply, bits)
        return first

    def compare(self, text: str, seed: int, reply: str, bits: Bits) -> None:
        said = [*self.messages, {"role": "user", "content": text}]
        options: Any = {
            "seed": seed, "temperature": 1.0, "max_tokens": TOKENS, "ignore_eos": True,
            "logprobs": 1,
        }  # fmt: skip
        turn = self.reference.begin(TurnRequest("", said, options))
        result = turn.stream.result()
        turn.end()
        is_same = result.text == reply and [one for _, one in bits] == result.logprobs
        self.different += not is_same
        self.messages = [*said, {"role": "assistant", "content": reply}]

    def cut_off(self, server: Server, seed: int, after: int) -> float:
        """Kill the server after `after` pieces of a reply; return when."""
        connection, response = ask(server, self.body("Tell me more", seed, LONG))
        pieces = chunks(response)
        for _ in range(after):
            next(pieces)
        os.kill(server.process.pid, signal.SIGKILL)
        killed = time.monotonic()
        try:
            for _ in pieces:
                pass
        except (http.client.HTTPException, OSError):
            pass
        connection.close()
        return killed

    def check(self, server: Server) -> None:
        """Count acknowledged turns that the server does not have."""
        found = json.loads(server.get(f"/v1/sessions/{self.session}/turns"))
        names = {turn["id"] for turn in found["data"]}
        self.missing += sum(name not in names for name in self.nodes)


def measure(args: argparse.Namespace, store: list[str], reference: Conversations) -> dict[str, Any]:
    """Kill servers, and return the figures."""
    source = random.Random(args.seed)
    replicas = Replicas(args.model, store)
    started = [replicas.start(index) for index in range(2)]
    servers = [replicas.wait(process) for process in started]
    firsts: list[float] = []
    talk = Talk(reference)
    acknowledged = 0
    try:
        for kill in range(args.kills):
            if kill % 10 == 0:  # a new conversation
                talk = Talk(reference, different=talk.different, missing=talk.missing)
            owner, other = kill % 2, 1 - kill % 2
            talk.say(servers[owner], f"Message {kill}", kill)
            killed = talk.cut_off(servers[owner], kill, source.randint(1, 20))
            servers[owner].process.wait()
            starting = replicas.start(owner)
            firsts.append(talk.say(servers[other], "Tell me more", kill) - killed)
            talk.say(servers[other], "And more", kill + 1)
            talk.check(servers[other])
            acknowledged += 3
            servers[owner] = replicas.wait(starting)
    finally:
        for server in servers:
            server.process.kill()
    return {
        "kills": args.kills,
        "acknowledged_turns": acknowledged,
        "missing_turns": talk.missing,
        "replies_that_differ": talk.different,
        "first_text_p50_s": round(quantile(firsts, 0.5), 3),
        "first_text_max_s": round(max(firsts), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder or file; default: a tiny random model")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--store", help="postgresql://…; default: a folder")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.model is None:
            sys.path.insert(0, str(Path(__file__).parents[1]))
            from tests.data import tiny

            tiny.write_folder(tiny.build("llama"), folder / "tiny")
            args.model = str(folder / "tiny")
        store = ["--store", args.store or str(folder / "store")]
        store += ["--snapshots", str(folder / "snapshots")]
        with sinkstream.load(
            args.model, sinks=SINKS, window=WINDOW, threads=1, max_sequences=2
        ) as model:
            reference = Conversations(model, folder / "reference", Settings())
            found = measure(args, store, reference)
            reference.close()
    report("takeover", found)


if __name__ == "__main__":
    main()
