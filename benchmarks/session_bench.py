"""Times a session's turns by length of its history; also forks, files, and reading all again.

    python benchmarks/session_bench.py --histories 64,1024,10000

For each length of the history, forks of one session get the same 16 tokens; lengths are
interleaved, so that all see the same machine. The time to the first token is the engine's own.
Reading a long history again takes minutes: `--anew` is the longest one that is measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import report

import sinkstream

TEXT = [28, 198, 104, 260] * 4  # any 16 tokens do
HISTORY = [42, 288, 105, 214, 253, 167, 282, 260]


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Return the median, the least and the most, in milliseconds."""
    return {
        "median": round(1000 * statistics.median(seconds), 3),
        "least": round(1000 * min(seconds), 3),
        "most": round(1000 * max(seconds), 3),
    }


def timed(action: Any) -> tuple[float, Any]:
    """Return the duration of a call in seconds, and its result."""
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", default="64,256,1024,4096,16384,100000")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--anew", type=int, default=16_384)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    lengths = [int(length) for length in args.histories.split(",")]
    model = sinkstream.load(
        args.path, window=args.window, max_sequences=len(lengths) + 2, threads=args.threads
    )
    sessions = []
    for length in lengths:
        session = model.session()
        session.append((HISTORY * (length // len(HISTORY) + 1))[:length])
        sessions.append(session)
    turns: dict[int, list[float]] = {length: [] for length in lengths}
    forks: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(args.rounds):
        for length, session in zip(lengths, sessions, strict=True):
            seconds, fork = timed(session.fork)
            forks[length].append(seconds)
            stats = fork.stream(TEXT, max_tokens=1, temperature=0).result().stats
            turns[length].append(stats.time_to_first_token_s or 0)
            fork.close()
    evicted = sessions[-1].stats.evicted_tokens
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for length, session in zip(lengths, sessions, strict=True):
            file = Path(folder) / "file"
            save_s, _ = timed(lambda session=session, file=file: session.save(file))
            session.close()
            load_s, loaded = timed(lambda file=file: model.load_session(file))
            loaded.close()
            rows[str(length)] = {
                "turn_ms": milliseconds(turns[length]),
                "fork_ms": milliseconds(forks[length]),
                "save_ms": round(1000 * save_s, 1),
                "load_ms": round(1000 * load_s, 1),
                "file_bytes": file.stat().st_size,
            }
            if length <= args.anew:
                anew = model.stream((HISTORY * length)[:length] + TEXT, max_tokens=1).result()
                seconds = anew.stats.time_to_first_token_s or 0
                rows[str(length)]["reading_all_anew_ms"] = round(1000 * seconds, 1)
    full = [row["turn_ms"]["median"] for n, row in rows.items() if int(n) >= args.window]
    report(
        "session",
        {
            "window": args.window,
            "threads": model.runtime["threads"],
            "new_tokens": len(TEXT),
            "rounds": args.rounds,
            "evicted_tokens": evicted,  # from the longest history
            "histories": rows,
            "spread_of_full_windows": round(max(full) / min(full) - 1, 3) if full else None,
        },
    )
    model.close()


if __name__ == "__main__":
    main()
