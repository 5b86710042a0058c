"""Measures the peak memory of a load, and the growth of memory over a long stream.

    python benchmarks/memory_bench.py --tokens 100000

The peak is that of RssAnon, sampled during the load. It is reported with what `capacity` announces
and with the fixed parts: the imports, and the tokenizer, measured alone in another process. The
slope is that of a least-squares line through RssAnon + VmSwap over the stream.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time

from figures import line
from machine import report, status_kib


def anonymous_kib() -> int:
    """Return the process's private memory that is not backed by a file."""
    return status_kib("RssAnon", "VmSwap")


class Peak:
    """Samples memory until `stop` is called."""

    def __init__(self) -> None:
        self.kib = anonymous_kib()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(0.0005):
            self.kib = max(self.kib, anonymous_kib())

    def stop(self) -> int:
        """Return the highest sample in KiB."""
        self._done.set()
        self._thread.join()
        return max(self.kib, anonymous_kib())


def tokenizer_kib(path: str | None) -> int:
    """Return the memory of an open checkpoint without its weights: header and tokenizer."""
    script = (
        "import sys\n"
        "from memory_bench import Peak, anonymous_kib\n"
        "from sinkstream.loading.open_checkpoint import open_checkpoint\n"
        "before = anonymous_kib()\n"
        "peak = Peak()\n"
        "checkpoint = open_checkpoint(sys.argv[1] or None)\n"
        "print(peak.stop() - before)\n"
    )
    command = [sys.executable, "-c", script, path or ""]
    folder = __file__.rpartition("/")[0] or "."
    return int(subprocess.run(command, check=True, capture_output=True, cwd=folder).stdout)


def main() -> None:
    """Load, stream, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()

    fixed = tokenizer_kib(args.path)
    before_import = anonymous_kib()
    import sinkstream

    imported = anonymous_kib()
    peak = Peak()
    model = sinkstream.load(args.path, window=args.window, max_sequences=1)
    highest = peak.stop()
    capacity = model.capacity
    kept = capacity.weight_bytes * 1.15 + capacity.cache_bytes
    announced = kept + capacity.scratch_bytes

    points: list[tuple[int, int]] = []
    started = time.perf_counter()
    count = 0
    stream = model.stream(
        "Once upon a time", max_tokens=args.tokens, ignore_eos=True, seed=1, temperature=1.0
    )
    for event in stream.events():
        if isinstance(event, sinkstream.Token):
            count += 1
            # The first thousands of tokens fill Python's own pools and the bounded tail of the
            # reply's text, 32,768 characters.
            if count % 500 == 0 and count >= args.tokens // 5:
                points.append((count, anonymous_kib()))
    seconds = time.perf_counter() - started
    model.close()
    report(
        "memory",
        {
            "tokens": count,
            "evicted_tokens": stream.stats.evicted_tokens,
            "tokens_per_s": round(count / seconds, 1),
            "imports_kib": imported - before_import,
            "tokenizer_kib": fixed,
            "load_peak_kib": highest - imported,
            "weights_kib": capacity.weight_bytes // 1024,
            "cache_kib": capacity.cache_bytes // 1024,
            "scratch_kib": capacity.scratch_bytes // 1024,
            "announced_kib": int(announced / 1024),
            "load_peak_over_weights_and_cache": round((highest - imported) * 1024 / kept, 3),
            "first_kib": points[0][1],
            "last_kib": points[-1][1],
            "slope_bytes_per_1000_tokens": round(line(points).slope * 1024 * 1000, 1),
        },
    )


if __name__ == "__main__":
    main()
