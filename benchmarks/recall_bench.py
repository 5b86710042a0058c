"""What SmolLM2 recalls, by distance: inside the window, behind it, and with nothing evicted.

    BENCH_OUT=figures python benchmarks/recall_bench.py --threads 2

The same questions three times, with a capacity of 512: sinks and a window; a window alone; and a
window so large that nothing is evicted, which is dense attention. That one says what the model can
do at all, so that a wrong answer of the others can be told from one that is the model's own. Before
a needle is hidden, a capacity and more of text has been read: what is asked was written after the
first eviction. StreamEval is asked of the first and the last only. Writes recall.json with all
answers, recall.png and recall.svg.
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
LEAD = CAPACITY + 128  # tokens before a needle, so that eviction has long begun
DISTANCES = (64, 128, 256, 384, 640, 1024, 2048)
BACK = (1, 5, 10, 40)  # lines of StreamEval, 22 tokens or so each
DENSE = 4096  # tokens; no run reads so many, and the model was trained on twice as many

# What a question sees: sinks, window.
VIEWS = {
    "sinks": (SINKS, CAPACITY - SINKS),
    "window": (0, CAPACITY),
    "dense": (0, DENSE),
}


def measure(model: sinkstream.Model, repeats: int, queries: int) -> dict[str, list[RecallResult]]:
    """Ask everything, and return the answers by view: of the needle, then of StreamEval."""
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
                f"{result.settings['evicted_tokens']} tokens. Ask less, or raise `DENSE`."
            )
    return found


def with_places(result: RecallResult) -> dict[str, Any]:
    """Return the result as plain values, and the counts by where the answer was."""
    places = {place: result.recall(place) for place in ("inside", "edge", "outside")}
    counts = {
        place: {"questions": recall.questions, "right": recall.right}
        for place, recall in places.items()
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
                view: {result.task: with_places(result) for result in results}
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
