"""Compares requests that run alone with the same requests in ragged batches, bit for bit.

    python benchmarks/batching_bench.py --comparisons 10000 --real 300

Compared are token ids and log-probabilities. Tiny models of several types share the comparisons;
`--real` sets those of SmolLM2. Any difference is a bug: the program then exits with status 1.
tests/python/exactness/batching.py defines the batches.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time

import numpy as np
from machine import ROOT, report

sys.path.insert(0, str(ROOT))


def main() -> int:
    """Compare; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--real", type=int, default=300)
    parser.add_argument("--most", type=int, default=32, help="sequences in a batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import sinkstream
    from tests.python.exactness.batching import (
        SETTINGS,
        Tally,
        compare_in_batches,
        draw_requests,
        open_tiny,
    )

    draw = np.random.default_rng(args.seed)

    def compare(model: sinkstream.Model, comparisons: int, longest: int) -> Tally:
        # Each request runs in about twenty batches.
        requests = draw_requests(model.spec.vocab_size, max(1, comparisons // 20), draw, longest)
        return compare_in_batches(model, requests, comparisons, draw, most=args.most)

    started = time.perf_counter()
    tiny, real = Tally(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        each = -(-args.comparisons // len(SETTINGS))
        for setting in SETTINGS:
            with open_tiny(
                setting, pathlib.Path(folder), most=args.most, threads=args.threads
            ) as model:
                tiny += compare(model, each, longest=300)
    if args.real > 0:
        with sinkstream.load(window=60, max_sequences=args.most, threads=args.threads) as model:
            real = compare(model, args.real, longest=100)
    different = tiny.different + real.different
    report(
        "batching",
        {
            "settings": list(SETTINGS),
            "most_at_once": args.most,
            "threads": args.threads,
            "seed": args.seed,
            "comparisons": tiny.comparisons,
            "comparisons_of_smollm2": real.comparisons,
            "tokens": tiny.tokens + real.tokens,
            "evicted_tokens": tiny.evicted_tokens + real.evicted_tokens,
            "cancelled": tiny.cancelled + real.cancelled,
            "tokens_per_step": round((tiny + real).tokens_per_step, 2),
            "different": len(different),
            "seconds": round(time.perf_counter() - started, 1),
        },
    )
    for request in different[:3]:
        print(request, file=sys.stderr)
    return min(len(different), 1)


if __name__ == "__main__":
    sys.exit(main())
