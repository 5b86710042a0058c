"""Measures two settings of the system: huge pages or small ones, threads pinned or not.

    python benchmarks/system_bench.py --rounds 5

Each setting runs in its own process, which keeps its model. Settings are interleaved, all with a
full cache, and compared with the first, round by round:

- as it is: the library's defaults.
- small pages: transparent huge pages are disabled (`PR_SET_THP_DISABLE`).
- pinned: each native thread runs on one core only.

Reports tokens/s, and p99 over p50 of the times between tokens, as the consumer sees them.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from figures import quantile
from machine import report

_PR_SET_THP_DISABLE = 41


def as_it_is() -> None:
    """Change nothing."""


def take_small_pages() -> None:
    """Disable transparent huge pages in this process from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def pin() -> None:
    """Pin each native thread to a core, sharing cores if there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    tasks = Path("/proc/self/task")
    ours = [task for task in tasks.iterdir() if (task / "comm").read_text().startswith("sinkst")]
    for task, core in zip(ours, itertools.cycle(cores), strict=False):
        os.sched_setaffinity(int(task.name), {core})


# Name -> what to do before the model is loaded, and after it.
WAYS: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "as it is": (as_it_is, as_it_is),
    "small pages": (take_small_pages, as_it_is),
    "pinned": (as_it_is, pin),
}


def serve(pipe: Connection, way: str, args: argparse.Namespace) -> None:
    """Load and fill the cache; then, for each count received, send the gaps of that many tokens."""
    import sinkstream

    before, after = WAYS[way]
    before()
    model = sinkstream.load(
        args.path, window=args.window, max_sequences=1, threads=args.threads, speculation=0
    )
    after()
    session = model.session()
    session.stream("Once upon a time", max_tokens=args.window + 64, ignore_eos=True).result()
    pipe.send("ready")
    while (count := pipe.recv()) > 0:
        stamps = []
        for event in session.stream([8], max_tokens=count + 1, ignore_eos=True, seed=1).events():
            if isinstance(event, sinkstream.Token):
                stamps.append(time.perf_counter())
        pipe.send([b - a for a, b in itertools.pairwise(stamps)])
    pipe.send(model.stats()["evicted_tokens"])


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000, help="of each setting in each round")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for way in WAYS:
        pipes[way], theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, way, args), daemon=True).start()
        theirs.close()
        pipes[way].recv()
    gaps: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        first = number % len(WAYS)
        for way in [*WAYS][first:] + [*WAYS][:first]:
            pipes[way].send(args.tokens)
            gaps[way].append(pipes[way].recv())
    evicted: dict[str, int] = {}
    figures: dict[str, Any] = {
        "rounds": args.rounds,
        "tokens of a round": args.tokens,
        "evicted_tokens": evicted,
    }
    for way, pipe in pipes.items():
        pipe.send(0)
        evicted[way] = pipe.recv()
        pairs = zip(gaps["as it is"], gaps[way], strict=True)
        pace = [sum(first) / sum(own) for first, own in pairs]
        spread = (min(pace), statistics.median(pace), max(pace))
        figures[way] = {
            "tokens_per_s": round(statistics.median(len(own) / sum(own) for own in gaps[way]), 1),
            "pace_over_the_first": [round(p, 3) for p in spread],
            "p99_over_p50": round(
                statistics.median(quantile(own, 0.99) / quantile(own, 0.5) for own in gaps[way]), 3
            ),
        }
    report("system", figures)


if __name__ == "__main__":
    main()
