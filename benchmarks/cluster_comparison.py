"""Compares the simulation with a real run of two servers on one store: the same counters.

    BENCH_OUT=folder python benchmarks/cluster_comparison.py --sessions 24 --seconds 60

Servers run on this machine with one thread each; the simulation's own ring chooses among them. The
same clients ask both: the same lengths, thinking times, and order. In the middle, one server is
replaced. The service times are measured first, and what two engines on two processors lose to each
other and to clients and event loops.

Goal: each ratio of simulated to real is within 10 %, on a machine that does nothing else.
`processor_s` is the processor time of the real run, without the server that is replaced, from then
on: of the engines, of the rest of the servers, of the clients, and `elsewhere`. What is done
elsewhere makes the real run slower than the simulated one, and more than in proportion: two engines
need most of two processors. `replayed_tokens` are of few turns, fewer than ten in a minute, so that
their ratio depends on chance. Left out are text that is merged to 40 events per second, and the
time of a commit after the last token, which `request_s` counts before the first.

Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.asking import WORD, ask
from cluster.placement import RingPlacement
from cluster.processor_time import ProcessorTime, processor_time
from cluster.processors import sharing_of
from cluster.service_times import service_times
from cluster.sessions import Clients, Habits, Session
from cluster.simulation import RETRY_S, Cluster, Counters, Simulation
from cluster_calibration import calibrate, sharing
from figures import quantile
from machine import report
from server.process import Server, serving
from server.setting import Setting

_PROCESSORS = 2
_SECRET = "of a benchmark, not a secret"
_NAMES = ("replica 0", "replica 1", "replica 2")
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
        asked = await ask(run.servers[name].port, session.name, self._previous, prompt, reply)
        if asked is None:
            return False
        self._previous = asked.response["id"]
        self._count(name, asked.response)
        if asked.first_text_at is not None:
            run.counters.first_token_s.append(asked.first_text_at - began)
        return True

    def _count(self, name: str, response: dict[str, Any]) -> None:
        counters, session = self._run.counters, self._session
        own = response["sinkstream"]
        counters.turns += 1
        counters.moved += session.host not in ("", name)
        session.host = name
        counters.loaded += own["state"] == "loaded" or own["replayed_tokens"] > 0
        counters.replayed_tokens += own["replayed_tokens"]
        counters.generated_tokens += response["usage"]["output_tokens"]


class Run:
    """The real run."""

    def __init__(self, servers: dict[str, Server], habits: Habits, seed: int) -> None:
        self.servers, self.habits = servers, habits
        self.placement = RingPlacement(100)
        for name in _NAMES[:2]:
            self.placement.add(name)
        self.counters = Counters()
        self.processor_s = ProcessorTime()
        self._clients = Clients(habits, seed)

    async def go(self, sessions: int, think_s: float, seconds: float) -> None:
        """Let the clients ask; replace the first server in the middle."""
        clients = [Client(self, self._clients.begin()) for _ in range(sessions)]
        tasks = [asyncio.create_task(client.live(think_s)) for client in clients]
        await self._measured(_NAMES, seconds / 2)
        self.placement.add(_NAMES[2])
        self.placement.remove(_NAMES[0])
        self.servers[_NAMES[0]].process.send_signal(signal.SIGTERM)
        await self._measured(_NAMES[1:], seconds / 2)
        for task in tasks:
            if task.done():
                task.result()  # an error
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _measured(self, names: Sequence[str], seconds: float) -> None:
        """Let a time pass, and count what the processors do for some servers meanwhile."""
        pids = [self.servers[name].process.pid for name in names]
        before = processor_time(pids)
        await asyncio.sleep(seconds)
        self.processor_s += processor_time(pids) - before


def simulate(
    tables: dict[str, Any],
    shared: dict[str, Any],
    cluster: Cluster,
    habits: Habits,
    seed: int,
    think_s: float,
    seconds: float,
) -> Simulation:
    """Return the same run, simulated."""
    simulation = Simulation(
        service_times(tables), lambda is_full: RingPlacement(100), cluster, habits, seed,
        think_s=think_s, are_new=True, sharing=sharing_of(shared),
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
    parser.add_argument("--window", type=int, default=252)
    parser.add_argument("--sequences", type=int, default=8, help="of each server, in memory")
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--think", type=float, default=4.0, help="seconds, on average")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    path = Setting(1, args.path).model()
    sizes = (args.window, args.sequences, args.sequences, args.rounds)
    tables = calibrate(path, 1, *sizes)
    shared = sharing(path, *sizes, _PROCESSORS)
    options = ["--model", str(path), "--threads", "1", "--window", str(args.window)]
    options += ["--max-sequences", str(args.sequences)]
    with tempfile.TemporaryDirectory() as store, servers(options, store) as found:
        run = Run(found, HABITS, args.seed)
        asyncio.run(run.go(args.sessions, args.think, args.seconds))
    habits = replace(HABITS, **read_tokens(path))
    cluster = Cluster(2, args.sessions, running=args.sequences)
    simulation = simulate(tables, shared, cluster, habits, args.seed, args.think, args.seconds)
    real, simulated = counted(run.counters), counted(simulation.counters)
    report(
        "cluster_comparison",
        {
            "model": path.name,
            "sessions": args.sessions,
            "seconds": args.seconds,
            "service_times": tables,
            "sharing": shared,
            "processor_s": run.processor_s.figures(),
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
