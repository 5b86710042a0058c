"""Time between tokens over a long stream: flat before, at and after the cache fills.

    python tests/bench/latency_bench.py --tokens 20000 --plot latency.png

Times are those at which the consumer has each token; the consumer does nothing else. Beside them
stand matrix-vector products by torch, of the same length on the same threads, before and after: how
much the machine itself makes equal pieces of work differ.
"""

from __future__ import annotations

import argparse
import itertools
import time
from array import array

from figures import quantile
from machine import report


def read_noise(milliseconds: float, threads: int, count: int) -> float:
    """Return p99/p50 of matrix-vector products that take about so long, by torch."""
    import torch

    torch.set_num_threads(threads)
    matrices = torch.ones(64, 512, 1024)  # 128 MB: more than the caches hold
    vector = torch.ones(1024)

    def read(matrix_count: int) -> float:
        started = time.perf_counter()
        for i in range(matrix_count):
            torch.mv(matrices[i % len(matrices)], vector)
        return 1000 * (time.perf_counter() - started)

    read(len(matrices))
    matrix_count = max(1, round(milliseconds / read(1000) * 1000))
    times = [read(matrix_count) for _ in range(count)]
    return quantile(times, 0.99) / quantile(times, 0.5)


def main() -> None:
    """Stream and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    parser.add_argument("--plot", default=None, help="write a picture of all times")
    args = parser.parse_args()
    import sinkstream

    model = sinkstream.load(args.path, window=args.window, max_sequences=1, threads=args.threads)
    capacity = model.capacity.tokens
    threads = model.runtime["threads"]
    milliseconds = 1000 / model.generate("Once", max_tokens=100).stats.tokens_per_s
    noise_before = read_noise(milliseconds, threads, 1000)
    stamps = array("d")
    stream = model.stream(
        "Once upon a time", max_tokens=args.tokens, ignore_eos=True, seed=1, temperature=1.0
    )
    for event in stream.events():
        if isinstance(event, sinkstream.Token):
            stamps.append(time.perf_counter())
    gaps = [1000 * (b - a) for a, b in itertools.pairwise(stamps)]
    fill = capacity - stream.stats.prompt_tokens
    half = capacity // 2
    model.close()
    p50 = quantile(gaps, 0.5)
    report(
        "latency",
        {
            "tokens": len(stamps),
            "capacity": capacity,
            "evicted_tokens": stream.stats.evicted_tokens,
            "threads": threads,
            "p50_ms": round(p50, 3),
            "p99_ms": round(quantile(gaps, 0.99), 3),
            "p99_over_p50": round(quantile(gaps, 0.99) / p50, 3),
            "largest_ms": round(max(gaps), 3),
            "median_ms_of_100_before_the_fill": round(quantile(gaps[fill - 100 : fill], 0.5), 3),
            "median_ms_of_100_at_the_fill": round(quantile(gaps[fill - 50 : fill + 50], 0.5), 3),
            "median_ms_of_a_window_after": round(quantile(gaps[fill : fill + half], 0.5), 3),
            "median_ms_of_the_last_tenth": round(quantile(gaps[-len(gaps) // 10 :], 0.5), 3),
            "read_p99_over_p50_before": round(noise_before, 3),
            "read_p99_over_p50_after": round(read_noise(p50, threads, 1000), 3),
        },
    )
    if args.plot:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(10, 4))
        axes.plot(gaps, ",", color="#0072b2")
        axes.axvline(fill, color="#d55e00", linewidth=1, label="the cache is full")
        axes.set(xlabel="token", ylabel="ms since the last token", ylim=(0, 4 * p50))
        axes.legend()
        figure.tight_layout()
        figure.savefig(args.plot, dpi=120)


if __name__ == "__main__":
    main()
