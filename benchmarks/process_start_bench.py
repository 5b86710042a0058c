"""Times the commands of a terminal from the start of their process to their first output.

    python benchmarks/process_start_bench.py
    python benchmarks/process_start_bench.py --path model.gguf --rounds 20

- python: an interpreter that prints a line, and imports nothing else. The others contain its time.
- version: `sinkstream --version`.
- first_token: `sinkstream generate`, up to the text of its first token. It imports the package,
  opens the checkpoint, builds the tokenizer, and reads the weights from the page cache.

Each round starts every command once. Reports the milliseconds to the first byte, and the most
memory that the process ever had, in MiB. It includes pages of mapped files, and is never less than
the memory of this script, about 14 MiB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from machine import report

_PROMPT = "The history of the sea begins with"


def commands(path: str | None) -> dict[str, list[str]]:
    """Return the command lines by name."""
    model = [] if path is None else ["--model", path]
    program = [sys.executable, "-m", "sinkstream"]
    return {
        "python": [sys.executable, "-c", "print('a line')"],
        "version": [*program, "--version"],
        "first_token": [*program, "generate", _PROMPT, *model, "--max-tokens", "1"],
    }


def start(command: list[str]) -> dict[str, float]:
    """Run a command; return its milliseconds to the first byte, and its peak memory in MiB."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        ms = 1000 * (time.perf_counter() - started)
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not first:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
    return {"ms": ms, "peak_mib": usage.ru_maxrss / 1024}


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians, and the smallest and largest time."""
    times = [figures["ms"] for figures in rounds]
    return {
        "ms": round(statistics.median(times), 1),
        "ms_from": round(min(times), 1),
        "ms_to": round(max(times), 1),
        "peak_mib": round(statistics.median(figures["peak_mib"] for figures in rounds), 1),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    lines = commands(args.path)
    for line in lines.values():
        start(line)  # brings the files into the page cache
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in lines}
    for _ in range(args.rounds):
        for name, line in lines.items():
            rounds[name].append(start(line))
    report(
        "process_start",
        {"rounds": args.rounds, **{name: summary(found) for name, found in rounds.items()}},
    )


if __name__ == "__main__":
    main()
