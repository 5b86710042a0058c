"""Times a load from the page cache to the first token, step by step, in fresh processes.

    python benchmarks/load_bench.py
    python benchmarks/load_bench.py --against ../other/python

Each round is a new process: it imports the package, loads the model, and takes the first token of a
prompt of 16. Weights are read in the background from the end of `open` on; `wait` is the part of
that which remains when the tokenizer is ready. `user` and `system` are processor time of all
threads, from the load to the first token; the steps are wall-clock time, which other programs
lengthen. `--against` names a folder with another build of the package; rounds then alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from machine import report

# What `load` calls, in order -> its step. Another build may lack some.
_STEPS = {
    "open_tensors": "open",
    "_begin_to_read": "open",
    "with_text": "tokenizer",
    "_token_table": "tokenizer",
    "_finish_reading": "wait",
    "Model": "cache",
}


def timed(function: Callable[..., Any], times: dict[str, float], step: str) -> Callable[..., Any]:
    """Return a wrapper that adds the milliseconds of each call to a step."""

    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            times[step] = times.get(step, 0) + 1000 * (time.perf_counter() - started)

    return call


def one_round(path: str | None) -> dict[str, float]:
    """Load, take one token, and return milliseconds."""
    import sinkstream

    loading = sys.modules[sinkstream.load.__module__]  # other builds may have it elsewhere
    times: dict[str, float] = {}
    for name, step in _STEPS.items():
        if hasattr(loading, name):
            setattr(loading, name, timed(getattr(loading, name), times, step))
    before, started = os.times(), time.perf_counter()
    model = sinkstream.load(path, window=1020, max_sequences=1)
    loaded = time.perf_counter()
    with model.stream(list(range(100, 116)), max_tokens=1, temperature=0) as stream:
        next(e for e in stream.events() if isinstance(e, sinkstream.Token))
        ended, after = time.perf_counter(), os.times()
        evicted = stream.stats.evicted_tokens
    model.close()
    return {
        **times,
        "load": 1000 * (loaded - started),
        "first_token": 1000 * (ended - loaded),
        "load_and_first_token": 1000 * (ended - started),
        "user": 1000 * (after.user - before.user),
        "system": 1000 * (after.system - before.system),
        "evicted_tokens": evicted,
    }


def in_a_process(path: str | None, package: str | None) -> dict[str, float]:
    """Return a round's figures, of the package in a folder or of the installed one."""
    command = [sys.executable, __file__, "--one", *([] if path is None else ["--path", path])]
    environment = dict(os.environ)
    if package is not None:
        environment["PYTHONPATH"] = package
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def summary(rounds: list[dict[str, float]]) -> dict[str, str]:
    """Return the median, smallest and largest of each figure."""
    found = {}
    for name in rounds[0]:
        values = [figures[name] for figures in rounds]
        found[name] = f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"
    return found


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--path", default=None)
    parser.add_argument("--against", default=None)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_round(args.path)))
        return
    builds = {"ms": None} | ({} if args.against is None else {"against_ms": args.against})
    for package in builds.values():
        in_a_process(args.path, package)  # brings the files into the page cache
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    for _ in range(args.rounds):
        for name, package in builds.items():
            rounds[name].append(in_a_process(args.path, package))
    evicted = [figures.pop("evicted_tokens") for found in rounds.values() for figures in found]
    report(
        "load",
        {
            "rounds": args.rounds,
            "evicted_tokens": int(max(evicted)),
            "median_ms_to_the_first_token": round(
                statistics.median(figures["load_and_first_token"] for figures in rounds["ms"])
            ),
            **{name: summary(found) for name, found in rounds.items()},
        },
    )


if __name__ == "__main__":
    main()
