"""Times loads that pack a model, map it, and share it; in fresh processes.

    python benchmarks/panels_bench.py model.gguf
    python benchmarks/panels_bench.py model.gguf --cold

`random_gguf.py llama-3.1-8b Q4_0` writes a model of 4.5 GB. Each figure is of a new process,
without imports:

- `plain`: a load without a panel file, and `first`: one that writes it, alternately. Both end when
  `load` returns; the file is written afterwards.
- `second`: loads that map the file, and `to_first_token` what follows, for a prompt of 16 tokens.
- `cold`, with --cold, which root may: the same, when no file is in the page cache, and a plain read
  of the bytes that the first token needs.
- `private`: the private resident memory of a second process, as a share of the weights, without
  that of the same process with a model of 1 MB. It has mapped the file of one that loaded the model
  for the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import report

_OPTIONS: dict[str, Any] = {"window": 508, "max_sequences": 1}


def private_bytes() -> int:
    """Return the resident bytes of this process that it shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines[1:])
    return 1024 * sum(int(fields[f"Private_{kind}"].split()[0]) for kind in ("Clean", "Dirty"))


def peak_bytes() -> int:
    """Return the most memory that this process has had, without what is mapped from files."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def one_load(path: str, cache: str | None, is_kept: bool) -> dict[str, float]:
    """Load, take one token, and return the figures; if `is_kept`, wait until the file is mapped."""
    import sinkstream

    sinkstream.load("smollm2", cache=False, **_OPTIONS).close()  # imports what is imported late
    before, started = private_bytes(), time.perf_counter()
    model = sinkstream.load(path, cache=cache or False, **_OPTIONS)
    loaded = time.perf_counter()
    with model.stream(list(range(100, 116)), max_tokens=1, temperature=0) as stream:
        next(e for e in stream.events() if isinstance(e, sinkstream.Token))
    answered, peak = time.perf_counter(), peak_bytes()
    while is_kept and model.capacity.mapped_weight_bytes < model.capacity.weight_bytes:
        time.sleep(0.01)
    found = {
        "load_s": loaded - started,
        "to_first_token_s": answered - started,
        "kept_s": time.perf_counter() - started,
        "peak_bytes": peak,
        "private_bytes": private_bytes() - before,
        "other_bytes": model.capacity.cache_bytes + model.capacity.scratch_bytes,
        "weight_bytes": model.capacity.weight_bytes,
        "mapped_bytes": model.capacity.mapped_weight_bytes,
        "bytes_per_token": model.capacity.weight_bytes_per_token,
    }
    print(json.dumps(found), flush=True)
    sys.stdin.read()  # until the other process has been measured
    model.close()
    return found


class Load:
    """A process that has loaded the model, until `end`."""

    def __init__(self, path: Path, cache: Path | None, *, is_kept: bool = False) -> None:
        command = [sys.executable, __file__, str(path), "--one"]
        command += [] if cache is None else ["--folder", str(cache)]
        command += ["--kept"] if is_kept else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.figures: dict[str, float] = json.loads(self._process.stdout.readline())

    def end(self) -> dict[str, float]:
        """End the process, and return its figures."""
        self._process.communicate("")
        return self.figures


def read_plainly(path: Path, count: int) -> float:
    """Return the seconds that reading the end of a file takes."""
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        file.seek(-count, os.SEEK_END)
        buffer = bytearray(8 << 20)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def drop_caches() -> None:
    """Empty the page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def cold(path: Path, cache: Path, rounds: int) -> dict[str, Any]:
    """Compare loads with nothing in the page cache to plain reads of what a token needs."""
    (file,) = cache.glob("*.panels")
    loads, reads = [], []
    for _ in range(rounds):
        drop_caches()
        figures = Load(path, cache).end()
        loads.append(figures["to_first_token_s"])
        drop_caches()
        reads.append(read_plainly(file, int(figures["bytes_per_token"])))
    return {"to_first_token_s": _median(loads), "plain_read_s": _median(reads)}


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--folder", type=Path, help="of panel files; by default a temporary one")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_load(str(args.path), None if args.folder is None else str(args.folder), args.kept)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        cache = Path(temporary)
        Load(args.path, None).end()  # brings the model's file into the page cache
        plain, first = [], []
        for _ in range(args.rounds):
            plain.append(Load(args.path, None).end())
            for each in cache.iterdir():
                each.unlink()
            first.append(Load(args.path, cache).end())
        for each in cache.iterdir():
            each.unlink()
        one = Load(args.path, cache, is_kept=True)
        other = Load(args.path, cache)
        second = [other.figures, *(Load(args.path, cache).end() for _ in range(args.rounds))]
        figures = other.end()
        kept = one.end()["kept_s"]
        private = max(0, figures["private_bytes"] - figures["other_bytes"])
        report(
            "panels",
            {
                "rounds": args.rounds,
                "weight_bytes": int(figures["weight_bytes"]),
                "plain_load_s": _median([each["load_s"] for each in plain]),
                "first_load_s": _median([each["load_s"] for each in first]),
                "plain_peak_bytes": int(max(each["peak_bytes"] for each in plain)),
                "first_peak_bytes": int(max(each["peak_bytes"] for each in first)),
                "kept_after_s": round(kept, 2),
                "second_load_s": _median([each["load_s"] for each in second]),
                "second_to_first_token_s": _median([each["to_first_token_s"] for each in second]),
                "second_private_share": round(private / figures["weight_bytes"], 4),
                **({"cold": cold(args.path, cache, args.rounds)} if args.cold else {}),
            },
        )


if __name__ == "__main__":
    main()
