"""Measures what SmolLM2 recalls by distance: inside the window, beyond it, and without eviction.

    BENCH_OUT=figures python benchmarks/recall_bench.py --threads 2

Each question is asked three times: with sinks and a window and a capacity of 512; with a window
alone; and with a window so large that nothing is evicted, which is dense attention. The dense run
shows what the model can answer at all. More than a capacity of text comes before each needle, so
the needle is written after the first eviction. StreamEval runs with the first and the last only.
Writes recall.json with all answers, recall.png and recall.svg.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from machine import report

import sinkstream
from sinkstream.evaluate import RecallResult, needle, plot_recall, stream_eval

CAPACITY = 512
SINKS = 4
LEAD = CAPACITY + 128  # tokens before a needle: eviction has begun
DISTANCES = (64, 128, 256, 384, 640, 1024, 2048)
BACK = (1, 5, 10, 40)  # lines of StreamEval, about 22 tokens each
DENSE = 4096  # tokens: more than any run reads, and half of the trained length

# What a question sees: sinks, window.
VIEWS = {
    "sinks": (SINKS, CAPACITY - SINKS),
    "window": (0, CAPACITY),
    "dense": (0, DENSE),
}


def measure(model: sinkstream.Model, repeats: int, queries: int) -> dict[str, list[RecallResult]]:
    """Return the answers by view: of the needle test, then of StreamEval."""
    found: dict[str, list[RecallResult]] = {}
    for view, (sinks, window) in VIEWS.items():
        results = [
            needle(
                model, distances=DISTANCES, lead=LEAD, repeats=repeats, sinks=sinks, window=window
            )
        ]
        if view != "window":
            results.append(
                stream_eval(model, back=BACK, queries=queries, sinks=sinks, window=window)
            )
        found[view] = results
    for result in found["dense"]:
        if result.settings["evicted_tokens"]:
            raise SystemExit(
                f"recall_bench: a dense run must evict nothing, but {result.task} has evicted "
                f"{result.settings['evicted_tokens']} tokens. Ask fewer questions or raise `DENSE`."
            )
    return found


def with_counts(result: RecallResult) -> dict[str, Any]:
    """Return the result as plain values, with counts by the place of the answer."""
    recalls = {place: result.recall(place) for place in ("inside", "edge", "outside")}
    counts = {
        place: {"questions": recall.questions, "right": recall.right}
        for place, recall in recalls.items()
        if recall is not None
    }
    return {"by_place": counts, **result.as_dict()}


def main() -> None:
    """Ask, report, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8, help="needles at each distance")
    parser.add_argument("--queries", type=int, default=12, help="StreamEval, at each distance")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    started = time.perf_counter()
    with sinkstream.load(
        args.path,
        sinks=SINKS,
        window=CAPACITY - SINKS,
        max_sequences=1,
        threads=args.threads,
    ) as model:
        found = measure(model, args.repeats, args.queries)
    report(
        "recall",
        {
            "seconds": round(time.perf_counter() - started),
            "views": {
                view: {result.task: with_counts(result) for result in results}
                for view, results in found.items()
            },
        },
    )
    out = os.environ.get("BENCH_OUT")
    if out:
        drawn = [result for results in found.values() for result in results]
        for kind in ("png", "svg"):
            plot_recall(drawn, Path(out) / f"recall.{kind}", title="SmolLM2-135M: what it recalls")


if __name__ == "__main__":
    main()
