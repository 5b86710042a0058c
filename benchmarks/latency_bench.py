"""Measures time between tokens over a long stream: before, while and after the cache fills.

    python benchmarks/latency_bench.py --tokens 100000 --llama 20000 --spin 20000 --plot all.png

- sinkstream: when the consumer receives each token; it does nothing else.
- `--llama N`: N tokens of llama.cpp in its faster mode, without sampling. When its cache is as full
  as ours, it shifts as llama.cpp's own programs do: the first 4 tokens stay, half of the others
  leave, and the rest move up. Needs `pip install llama-cpp-python`.
- `--spin N`: N empty loops on one core, each as long as our median token, half of them before our
  stream and half after it: the machine's own jitter. `noise_bench.py` interleaves loops, reads of
  memory and tokens.

Of each: p50, p99 and their ratio; of llama.cpp also the median step that shifts. For sinkstream
also a test for a period of one page (64 tokens) or one ring of pages: of the medians at each offset
in the period, the one farthest from p50, over p50.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from figures import quantile, spread
from machine import report
from noise import empty_loops, loop_iterations

PAGE = 64
FLASH = "llama.cpp, flash attention"
COLOURS = ("#0072b2", "#e69f00", "#999999")  # told apart by colour-blind readers, too


@dataclass(frozen=True)
class Series:
    """Milliseconds of tokens, or of loops as long as a token, in order."""

    name: str
    gaps: Sequence[float]
    shifts: Sequence[int] = ()  # indices of the gaps that shift a cache

    def figures(self) -> dict[str, Any]:
        """Return the statistics to report."""
        found: dict[str, Any] = spread(self.gaps)
        if self.shifts:
            shift = statistics.median(self.gaps[i] for i in self.shifts)
            over = shift / quantile(self.gaps, 0.5)
            found |= {"shifts": len(self.shifts), "median_shift_over_p50": round(over, 3)}
        return found


def farthest_median(gaps: Sequence[float], period: int, p50: float) -> float:
    """Return the median at the offset of a period that is farthest from p50, over p50."""
    medians = [statistics.median(gaps[offset::period]) for offset in range(period)]
    return max(medians, key=lambda median: abs(median - p50)) / p50


def shifted(path: str, capacity: int, threads: int, tokens: int) -> Series:
    """Return llama.cpp's stream in the faster mode here, with or without flash attention."""
    from peers.isolated import IsolatedPeer

    modes = [IsolatedPeer(name, path, threads) for name in ("llama.cpp", FLASH)]
    fastest = min(modes, key=lambda mode: mode.ask("decode", capacity, 32))
    seconds = fastest.ask_all("endless", capacity, tokens)
    shifts = [int(i) for i in fastest.ask_all("shifts")]
    for mode in modes:
        mode.close()
    return Series(f"{fastest.name}, context shift", [1000 * each for each in seconds], shifts)


def plot(path: str, all_series: Sequence[Series], fill: int) -> None:
    """Draw each series in its own panel, on one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(all_series), figsize=(10, 1 + 2.5 * len(all_series)), sharey=True, squeeze=False
    )
    highest = 2.5 * max(quantile(series.gaps, 0.5) for series in all_series)
    for axes, series, colour in zip(panels[:, 0], all_series, COLOURS, strict=False):
        axes.plot(series.gaps, ",", color=colour)
        axes.set(title=series.name, xlabel="token", ylabel="ms", ylim=(0, highest))
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
    parser.add_argument("--llama", type=int, default=0, help="tokens of llama.cpp")
    parser.add_argument("--spin", type=int, default=2_000, help="empty loops")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    parser.add_argument("--plot", default=None, help="write a picture of all times")
    args = parser.parse_args()
    import sinkstream

    model = sinkstream.load(args.path, window=args.window, max_sequences=1, threads=args.threads)
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
    path = model.path
    model.close()
    loops += empty_loops(iterations, args.spin - args.spin // 2)
    ours = Series("sinkstream", gaps)
    p50 = quantile(gaps, 0.5)
    after = gaps[fill:]
    ring = PAGE * (-(-args.window // PAGE) + 1)
    found: dict[str, Any] = {
        "tokens": len(stamps),
        "capacity": capacity,
        "evicted_tokens": stream.stats.evicted_tokens,
        "threads": threads,
        **ours.figures(),
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
    all_series = [ours]
    if args.llama:
        all_series.append(shifted(path, capacity, threads, args.llama))
    if args.spin:
        all_series.append(Series("an empty loop on one core", loops))
    found["compared"] = {series.name: series.figures() for series in all_series[1:]}
    report("latency", found)
    if args.plot:
        plot(args.plot, all_series, fill)


if __name__ == "__main__":
    main()
