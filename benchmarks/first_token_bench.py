"""Measures time to the first token, and the time of a forward by number of tokens.

    python benchmarks/first_token_bench.py --plot forward.png

A forward of M tokens is one call of `model.forward(ids, cache)` with an empty cache. It computes
the logits of all M tokens; reading a prompt computes those of the last token only.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from machine import report


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--path", default=None)
    parser.add_argument("--plot", default=None)
    args = parser.parse_args()
    import sinkstream

    started = time.perf_counter()
    model = sinkstream.load(args.path, window=1020, max_sequences=1)
    load_s = time.perf_counter() - started
    ids = [100 + i for i in range(16)]
    first = []
    for _ in range(args.rounds):
        started = time.perf_counter()
        with model.stream(ids, max_tokens=1, temperature=0) as stream:
            for event in stream.events():
                if isinstance(event, sinkstream.Token):
                    first.append(1000 * (time.perf_counter() - started))
    counts = [*range(1, 17), 20, 24, 32, 40, 48, 56, 64]
    forward = {}
    for count in counts:
        times = []
        for _ in range(args.rounds):
            cache = model.new_cache()
            tokens = torch.tensor([[100 + i for i in range(count)]])
            started = time.perf_counter()
            model.forward(tokens, cache)
            times.append(1000 * (time.perf_counter() - started))
        forward[count] = round(statistics.median(times), 3)
    model.close()
    report(
        "first_token",
        {
            "load_s": round(load_s, 3),
            "threads": model.runtime["threads"],
            "first_token_ms_median": round(statistics.median(first), 2),
            "first_token_ms_largest": round(max(first), 2),
            "forward_ms_of_M_tokens": forward,
            "evicted_tokens": cache.evicted,
        },
    )
    if args.plot:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(7, 4))
        axes.plot(list(forward), list(forward.values()), "o-", color="#0072b2")
        axes.set(xlabel="tokens in one forward", ylabel="ms", ylim=(0, None))
        figure.tight_layout()
        figure.savefig(args.plot, dpi=120)


if __name__ == "__main__":
    main()
