"""Measures time between tokens over a long stream: before, while and after the cache fills.

    python benchmarks/latency_bench.py --tokens 100000 --spin 20000 --plot all.png

- sinkstream: when the consumer receives each token; it does nothing else.
- `--spin N`: N empty loops on one core, each as long as our median token, half of them before our
  stream and half after it: the machine's own jitter. `noise_bench.py` interleaves loops, reads of
  memory and tokens.

Of each: p50, p99 and their ratio. For sinkstream also a test for a period of one page (64 tokens)
or one ring of pages: of the medians at each offset in the period, the one farthest from p50, over
p50. `endurance_bench.py` compares the waits of clients with those of other servers.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from figures import quantile, spread
from machine import report
from noise import empty_loops, loop_iterations

PAGE = 64
COLOURS = ("#0072b2", "#e69f00")  # told apart by colour-blind readers, too


def farthest_median(gaps: Sequence[float], period: int, p50: float) -> float:
    """Return the median at the offset of a period that is farthest from p50, over p50."""
    medians = [statistics.median(gaps[offset::period]) for offset in range(period)]
    return max(medians, key=lambda median: abs(median - p50)) / p50


def plot(path: str, series: Mapping[str, Sequence[float]], fill: int) -> None:
    """Draw each series in its own panel, on one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(series), figsize=(10, 1 + 2.5 * len(series)), sharey=True, squeeze=False
    )
    highest = 2.5 * max(quantile(gaps, 0.5) for gaps in series.values())
    for axes, (name, gaps), colour in zip(panels[:, 0], series.items(), COLOURS, strict=False):
        axes.plot(gaps, ",", color=colour)
        axes.set(title=name, xlabel="token", ylabel="ms", ylim=(0, highest))
    panels[0, 0].axvline(fill, color="#d55e00", linewidth=1, label="the cache is full")
    panels[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Stream and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--spin", type=int, default=2_000, help="empty loops")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    parser.add_argument("--plot", default=None, help="write a picture of all times")
    args = parser.parse_args()
    import sinkstream

    model = sinkstream.load(
        args.path, window=args.window, max_sequences=1, threads=args.threads, speculation=0
    )
    capacity, threads = model.capacity.tokens, model.runtime["threads"]
    milliseconds = 1000 / model.generate("Once", max_tokens=200).stats.tokens_per_s
    iterations = loop_iterations(milliseconds)  # the same for both halves
    loops = empty_loops(iterations, args.spin // 2)
    stamps = array("d")
    stream = model.stream(
        "Once upon a time", max_tokens=args.tokens, ignore_eos=True, seed=1, temperature=1.0
    )
    for event in stream.events():
        if isinstance(event, sinkstream.Token):
            stamps.append(time.perf_counter())
    gaps = [1000 * (b - a) for a, b in itertools.pairwise(stamps)]
    fill = capacity - stream.stats.prompt_tokens
    model.close()
    loops += empty_loops(iterations, args.spin - args.spin // 2)
    p50 = quantile(gaps, 0.5)
    after = gaps[fill:]
    ring = PAGE * (-(-args.window // PAGE) + 1)
    found: dict[str, Any] = {
        "tokens": len(stamps),
        "capacity": capacity,
        "evicted_tokens": stream.stats.evicted_tokens,
        "threads": threads,
        **spread(gaps),
        "median_ms_of_100_before_the_fill": round(quantile(gaps[fill - 100 : fill], 0.5), 3),
        "median_ms_of_100_at_the_fill": round(quantile(gaps[fill - 50 : fill + 50], 0.5), 3),
        "median_ms_of_a_half_window_after": round(quantile(after[: capacity // 2], 0.5), 3),
        "median_ms_of_the_last_tenth": round(quantile(gaps[-len(gaps) // 10 :], 0.5), 3),
    }
    for name, period in (("page", PAGE), ("ring", ring)):
        if len(after) >= 20 * period:
            found[f"farthest_median_of_the_{name}_over_p50"] = round(
                farthest_median(after, period, p50), 3
            )
    series = {"sinkstream": gaps}
    if args.spin:
        series["an empty loop on one core"] = loops
        found["compared"] = {"an empty loop on one core": spread(loops)}
    report("latency", found)
    if args.plot:
        plot(args.plot, series, fill)


if __name__ == "__main__":
    main()
