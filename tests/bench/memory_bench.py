"""Memory: what a load takes at its peak, and that a long stream takes nothing more.

    python tests/bench/memory_bench.py --tokens 100000

The peak is that of RssAnon, sampled during the load, beside what `capacity` announces and what the
imports alone cost. The slope is a least-squares line through RssAnon + VmSwap over the stream.
"""

from __future__ import annotations

import argparse
import threading
import time

from machine import report, status_kib


def anonymous_kib() -> int:
    """Return memory that belongs to this process alone and is not a file's."""
    return status_kib("RssAnon", "VmSwap")


class Peak:
    """Samples memory until it is stopped."""

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


def slope(points: list[tuple[int, int]]) -> float:
    """Return the slope of a least-squares line."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return over / sum((x - mean_x) ** 2 for x, _ in points)


def main() -> None:
    """Load, stream, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()

    before_import = anonymous_kib()
    import sinkstream

    imported = anonymous_kib()
    peak = Peak()
    model = sinkstream.load(args.path, window=args.window, max_sequences=1)
    highest = peak.stop()
    capacity = model.capacity
    announced = capacity.weight_bytes * 1.15 + capacity.cache_bytes

    points: list[tuple[int, int]] = []
    started = time.perf_counter()
    count = 0
    for event in model.stream(
        "Once upon a time", max_tokens=args.tokens, ignore_eos=True, seed=1, temperature=1.0
    ).events():
        if isinstance(event, sinkstream.Token):
            count += 1
            # The first thousands fill what is filled once: Python's own pools, the bounded tail.
            if count % 500 == 0 and count >= args.tokens // 10:
                points.append((count, anonymous_kib()))
    seconds = time.perf_counter() - started
    model.close()
    report(
        "memory",
        {
            "tokens": count,
            "tokens_per_s": round(count / seconds, 1),
            "imports_kib": imported - before_import,
            "load_peak_kib": highest - imported,
            "weights_kib": capacity.weight_bytes // 1024,
            "cache_kib": capacity.cache_bytes // 1024,
            "allowed_kib": int(announced / 1024),
            "first_kib": points[0][1],
            "last_kib": points[-1][1],
            "slope_bytes_per_1000_tokens": round(slope(points) * 1024 * 1000, 1),
        },
    )


if __name__ == "__main__":
    main()
