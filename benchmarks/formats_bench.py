"""Compares decode speed with llama.cpp's for files of several block formats.

    python benchmarks/formats_bench.py FILE.gguf [FILE.gguf ...] --threads 1

For each file: the milliseconds of a token with 16 cached tokens, in both engines, each in its own
process and interleaved round by round; our share of a plain read of the same bytes, measured before
and after; and the bytes that a token reads of our weights, over those of the file's matrices.

`quantize_with_llama_cpp.py` writes the files with llama.cpp's own quantizer. Needs the extra
`bench`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from machine import report
from peers.isolated import IsolatedPeer
from side_by_side_bench import MEASURES, Measure, mean, probe, share

from sinkstream.checkpoint.checkpoint import row_bytes
from sinkstream.loading.open_checkpoint import open_checkpoint

DECODE = next(one for one in MEASURES if one.arguments == (16, 48))
_NAMES = ("sinkstream", "llama.cpp")


def file_bytes_per_token(path: str) -> int:
    """Return the bytes of the tensors that a token reads, as they are in the file."""
    checkpoint = open_checkpoint(path)
    try:
        tied = checkpoint.spec.tie_embeddings
        return sum(
            one.slot.rows * row_bytes(one.storage, one.slot.cols)
            for one in checkpoint.tensors
            if tied or one.slot.name != "embedding"
        )
    finally:
        checkpoint.source.close()


def compare(path: str, threads: int, rounds: int, one: Measure = DECODE) -> dict[str, Any]:
    """Measure one file with both engines."""
    engines = [IsolatedPeer(name, path, threads) for name in _NAMES]
    seconds: dict[str, list[float]] = {name: [] for name in _NAMES}
    shares = []
    try:
        for number in range(rounds):
            for engine in engines[:: 1 if number % 2 == 0 else -1]:
                before = probe(one, threads, "") if engine is engines[0] else None
                taken = engine.ask(one.method, *one.arguments)
                seconds[engine.name].append(taken)
                if before is not None:
                    around = mean(before, probe(one, threads, ""))
                    shares.append(share(one, engine, taken, around))
            print(f"{Path(path).name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        read = engines[0].ask("bytes_read", 0)
        evicted = int(engines[0].ask("evicted"))
    finally:
        for engine in engines:
            engine.close()
    ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
    return {
        **{f"{name}, ms": round(1000 * statistics.median(t), 2) for name, t in seconds.items()},
        "ratio": round(statistics.median(ratios), 3),
        "smallest": round(min(ratios), 3),
        "largest": round(max(ratios), 3),
        "share_of_read": round(statistics.median(filter(None, shares)), 3),
        "evicted_tokens": evicted,
        "bytes_over_file": round(read / file_bytes_per_token(path), 4),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: args.threads]
    os.sched_setaffinity(0, cores)  # inherited by both engines
    files = {Path(path).name: compare(path, args.threads, args.rounds) for path in args.files}
    report(f"formats-{args.threads}", {"threads": args.threads, "files": files})


if __name__ == "__main__":
    main()
