"""Compares the simulation with a real run of two servers on one store: the same counters.

    BENCH_OUT=folder python benchmarks/cluster_comparison.py --sessions 24 --seconds 60

Servers run on this machine with `--threads` each; the simulation's own ring chooses among them. The
same clients ask both: the same lengths, thinking times, and order. In the middle, one server is
replaced. The service times are measured first, by two processes at the same time, as in the run.
Goal: each ratio of simulated to real is within 10 %. Times of a shared machine are noisy. What the
simulation leaves out makes it faster: text that is merged to 40 events per second, and the clients
and event loops, which share the processors with the engines.

Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.placement import RingPlacement
from cluster.service_times import service_times
from cluster.sessions import Clients, Habits, Session
from cluster.simulation import RETRY_S, Cluster, Counters, Simulation
from cluster_calibration import calibrate
from figures import quantile
from machine import report
from server.process import Server, serving
from server.setting import Setting

_SECRET = "of a benchmark, not a secret"
_NAMES = ("replica 0", "replica 1", "replica 2")
WORD = "a "
HABITS = Habits(prompt_tokens=24.0, reply_tokens=40.0, turns=1e9)


class Client:
    """One real client, which draws what the simulated one draws."""

    def __init__(self, run: Run, session: Session) -> None:
        self._run = run
        self._session = session
        self._previous: str | None = None

    async def live(self, think_s: float) -> None:
        """Ask until the run ends."""
        session, habits = self._session, self._run.habits
        draw = session.random.expovariate
        while True:
            await asyncio.sleep(draw(session.heat / think_s))
            prompt, reply = 1 + draw(1 / habits.prompt_tokens), 1 + draw(1 / habits.reply_tokens)
            began = time.perf_counter()
            while not await self._ask(round(prompt), round(reply), began):
                self._run.counters.refused += 1
                await asyncio.sleep(RETRY_S * (1 + session.random.random()))

    async def _ask(self, prompt: int, reply: int, began: float) -> bool:
        """Return whether the request was answered."""
        run, session = self._run, self._session
        name = run.placement.choose(session.name)
        body = {
            "input": WORD * prompt, "max_output_tokens": reply, "ignore_eos": True, "stream": True,
            "previous_response_id": self._previous, "seed": 1,
        }  # fmt: skip
        payload = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", run.servers[name].port)
        try:
            head = (
                "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nX-Session-Id: {session.name}\r\n"
                f"Content-Length: {len(payload)}\r\n\r\n"
            )
            writer.write(head.encode() + payload)
            if b" 200 " not in await reader.readline():
                return False
            first_s, last = 0.0, b""
            async for line in reader:
                if not first_s and line.startswith(b"data: ") and b"output_text.delta" in line:
                    first_s = time.perf_counter() - began
                if line.startswith(b"data: {"):
                    last = line
        finally:
            writer.close()
        response = json.loads(last[6:])["response"]
        self._previous = response["id"]
        self._count(name, response, first_s)
        return True

    def _count(self, name: str, response: dict[str, Any], first_s: float) -> None:
        counters, session = self._run.counters, self._session
        own = response["sinkstream"]
        counters.turns += 1
        counters.moved += session.host not in ("", name)
        session.host = name
        counters.loaded += own["state"] == "loaded" or own["replayed_tokens"] > 0
        counters.replayed_tokens += own["replayed_tokens"]
        counters.first_token_s.append(first_s)
        counters.generated_tokens += response["usage"]["output_tokens"]


class Run:
    """The real run."""

    def __init__(self, servers: dict[str, Server], habits: Habits, seed: int) -> None:
        self.servers, self.habits = servers, habits
        self.placement = RingPlacement(100)
        for name in _NAMES[:2]:
            self.placement.add(name)
        self.counters = Counters()
        self._clients = Clients(habits, seed)

    async def go(self, sessions: int, think_s: float, seconds: float) -> None:
        """Let the clients ask; replace the first server in the middle."""
        clients = [Client(self, self._clients.begin()) for _ in range(sessions)]
        tasks = [asyncio.create_task(client.live(think_s)) for client in clients]
        await asyncio.sleep(seconds / 2)
        self.placement.add(_NAMES[2])
        self.placement.remove(_NAMES[0])
        self.servers[_NAMES[0]].process.send_signal(signal.SIGTERM)
        await asyncio.sleep(seconds / 2)
        for task in tasks:
            if task.done():
                task.result()  # an error
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def simulate(
    tables: dict[str, Any],
    cluster: Cluster,
    habits: Habits,
    seed: int,
    think_s: float,
    seconds: float,
) -> Simulation:
    """Return the same run, simulated."""
    simulation = Simulation(
        service_times(tables), lambda is_full: RingPlacement(100), cluster, habits, seed,
        think_s=think_s, are_new=True,
    )  # fmt: skip

    def replace_one() -> None:
        simulation.add_replica()
        simulation.drain(_NAMES[0])

    simulation.events.at(seconds / 2, replace_one)
    simulation.events.run(seconds)
    return simulation


@contextlib.contextmanager
def servers(options: list[str], store: str) -> Iterator[dict[str, Server]]:
    """Run three servers on one store; the third gets no requests at first."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in _NAMES:
            own = ["--store", store, "--replica", name.replace(" ", "-"), "--peer-secret", _SECRET]
            found[name] = stack.enter_context(serving([*options, *own]))
        yield found


def counted(counters: Counters) -> dict[str, float]:
    """Return what is compared."""
    waits = counters.first_token_s
    return {
        "turns": counters.turns,
        "generated_tokens": round(counters.generated_tokens),
        "moved": counters.moved,
        "loaded": counters.loaded,
        "replayed_tokens": round(counters.replayed_tokens),
        "refused": counters.refused,
        "first_token_p50_ms": round(quantile(waits, 0.5) * 1e3, 1),
        "first_token_p90_ms": round(quantile(waits, 0.9) * 1e3, 1),
    }


def main() -> None:
    """Measure, simulate and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", type=Path, help="a model's file; default: SmolLM2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--window", type=int, default=252)
    parser.add_argument("--sequences", type=int, default=8, help="of each server, in memory")
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--think", type=float, default=4.0, help="seconds, on average")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    path = Setting(args.threads, args.path).model()
    sizes = (path, args.threads, args.window, args.sequences, args.sequences, args.rounds)
    with ProcessPoolExecutor(2) as pool:  # both at work, as in the run
        tables, _ = [task.result() for task in [pool.submit(calibrate, *sizes) for _ in range(2)]]
    options = ["--model", str(path), "--threads", str(args.threads), "--window", str(args.window)]
    options += ["--max-sequences", str(args.sequences)]
    with tempfile.TemporaryDirectory() as store, servers(options, store) as found:
        run = Run(found, HABITS, args.seed)
        asyncio.run(run.go(args.sessions, args.think, args.seconds))
    habits = replace(HABITS, **read_tokens(path))
    cluster = Cluster(2, args.sessions, running=args.sequences)
    simulation = simulate(tables, cluster, habits, args.seed, args.think, args.seconds)
    real, simulated = counted(run.counters), counted(simulation.counters)
    report(
        "cluster_comparison",
        {
            "model": path.name,
            "sessions": args.sessions,
            "seconds": args.seconds,
            "service_times": tables,
            "real": real,
            "simulated": simulated,
            "simulated_over_real": {
                name: round(simulated[name] / real[name], 3) for name in real if real[name]
            },
        },
    )


def read_tokens(path: Path) -> dict[str, float]:
    """Return the tokens of a word of a prompt, and of what the chat template adds to a turn."""
    import sinkstream

    read = []
    with sinkstream.load(path, window=252, threads=1) as model, model.session() as session:
        for words in (10, 10, 40):  # the first turn has a beginning of its own
            before = session.stats.tokens
            session.stream(WORD * words, max_tokens=2, ignore_eos=True, seed=1).result()
            read.append(session.stats.tokens - before - 2)
    per_word = (read[2] - read[1]) / 30
    return {"tokens_per_word": per_word, "template_tokens": read[1] - 10 * per_word}


if __name__ == "__main__":
    main()
