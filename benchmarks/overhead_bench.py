"""Measures the time of a token outside its kernels, on a model of a few thousand weights.

    python benchmarks/overhead_bench.py

The kernels of so small a model take microseconds, so a step, including the hand-over to Python, is
mostly overhead.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import sys
import tempfile
import time

from machine import ROOT, report

sys.path.insert(0, str(ROOT))


def main() -> None:
    """Measure steps and gaps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    import sinkstream
    from tests.data import tiny

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny"
        tiny.write_folder(tiny.build("llama"), path, shards=1)
        with sinkstream.load(
            path, window=60, max_sequences=1, threads=args.threads, speculation=0
        ) as model:
            stream = model.stream([1, 2, 3], max_tokens=args.tokens, ignore_eos=True, temperature=0)
            started = time.perf_counter()
            result = stream.result()
            seconds = time.perf_counter() - started
            steps = model._native.steps(0)
            layers = model.spec.layers
    forward = statistics.median(s[2] - s[1] for s in steps)
    report(
        "overhead",
        {
            "layers": layers,
            "threads": args.threads,
            "tokens": len(result.token_ids),
            "evicted_tokens": result.stats.evicted_tokens,
            "us_per_token_in_all": round(1e6 * seconds / args.tokens, 1),
            "forward_us_median": round(1e6 * forward, 1),
            "sample_and_deliver_us_median": round(
                1e6 * statistics.median(s[3] - s[2] for s in steps), 1
            ),
            "between_steps_us_median": round(
                1e6 * statistics.median(b[1] - a[3] for a, b in itertools.pairwise(steps)),
                1,
            ),
            "us_per_token_beyond_the_forward": round(1e6 * (seconds / args.tokens - forward), 1),
        },
    )


if __name__ == "__main__":
    main()
