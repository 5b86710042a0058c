"""Measures the service times that `cluster_simulation.py` uses: of one replica, on this machine.

    BENCH_OUT=folder python benchmarks/cluster_calibration.py --threads 1 --window 1020 --seats 16

- `step_s`: a step by the number of sequences that decode, from the engine's own count of steps,
- `read_s`: time to the first token of a prompt by tokens, nothing else running,
- `read_beside_s`, `step_beside_s`: the same while one sequence decodes, and its steps meanwhile,
- `load_s`: opening a saved session by the size of its file,
- `request_s`: a request of a server minus the time that the engine reports for it.

Each is the least of `--rounds`, as what else the machine does only adds to it; `request_s` is a
median. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from machine import report
from server.process import Server, sinkstream_server
from server.setting import Setting

import sinkstream

TEXT = [28, 198, 104, 260, 42, 288, 105, 214]  # any tokens do
_STEPS = 40


def ids(tokens: int) -> list[int]:
    """Return a prompt."""
    return (TEXT * (tokens // len(TEXT) + 1))[:tokens]


def step_s(model: sinkstream.Model, sequences: int) -> float:
    """Return the time of a step in which `sequences` decode."""
    streams = [
        model.stream(ids(16), max_tokens=1 << 20, ignore_eos=True, seed=number)
        for number in range(sequences)
    ]
    try:
        while model.stats()["running"] < sequences or model.stats()["waiting"]:
            time.sleep(0.001)
        time.sleep(0.05)  # the last prompt has been read
        begin, before = time.perf_counter(), model.stats()["steps"]
        while model.stats()["steps"] < before + _STEPS:
            time.sleep(0.001)
        return float((time.perf_counter() - begin) / (model.stats()["steps"] - before))
    finally:
        for stream in streams:
            stream.close()


def read_s(model: sinkstream.Model, tokens: int) -> float:
    """Return the time to the first token of a prompt."""
    with model.stream(ids(tokens), max_tokens=1, ignore_eos=True, seed=1) as stream:
        stats = stream.result().stats
    assert stats.time_to_first_token_s is not None
    return stats.time_to_first_token_s


def read_beside_s(model: sinkstream.Model, tokens: int) -> tuple[float, float]:
    """Return the same while one sequence decodes, and the time of a step meanwhile."""
    with model.stream(ids(16), max_tokens=1 << 20, ignore_eos=True, seed=1) as other:
        next(iter(other))
        time.sleep(0.05)
        before = model.stats()["steps"]
        begin = time.perf_counter()
        taken = read_s(model, tokens)
        passed, steps = time.perf_counter() - begin, model.stats()["steps"] - before
    return taken, passed / steps


def load_s(model: sinkstream.Model, tokens: int, rounds: int) -> tuple[int, float]:
    """Return the size of a saved session, and the time to open it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.session"
        with model.session() as session:
            session.append(ids(tokens))
            session.save(path)
        taken = []
        for _ in range(rounds):
            begin = time.perf_counter()
            model.load_session(path).close()
            taken.append(time.perf_counter() - begin)
        return path.stat().st_size, min(taken)


def request_s(server: Server, rounds: int) -> float:
    """Return what a request takes in addition to the engine's work."""
    taken = []
    for _ in range(rounds + 1):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "seed": 1}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/v1/chat/completions",
            json.dumps({**body, "timings_per_token": True}).encode(),
            {"Content-Type": "application/json"},
        )
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:
            timings = json.loads(answer.read())["timings"]
        wall_s = time.perf_counter() - begin
        taken.append(wall_s - (timings["prompt_ms"] + timings["predicted_ms"]) / 1e3)
    return statistics.median(taken[1:])


def calibrate(
    path: Path, threads: int, window: int, seats: int, running: int, rounds: int
) -> dict[str, Any]:
    """Return the tables."""
    with sinkstream.load(path, threads=threads, window=window, max_sequences=seats) as model:
        capacity = model.capacity
        batches = sorted({1, 2, 4, 8, running} & set(range(1, running + 1)))
        lengths = [tokens for tokens in (1, 16, 64, 256, 1024) if tokens <= capacity.tokens]
        steps = {n: [step_s(model, n) for _ in range(rounds)] for n in batches}
        reads = {n: [read_s(model, n) for _ in range(rounds)] for n in lengths}
        both = {n: [read_beside_s(model, n) for _ in range(rounds)] for n in lengths}
        sizes = sorted({16, capacity.tokens // 4, capacity.tokens})
        loads = [load_s(model, tokens, rounds) for tokens in sizes]
        token_bytes = loads[-1][0] / capacity.tokens
    options = ["--model", str(path), "--threads", str(threads), "--window", str(window)]
    with sinkstream_server(options) as server:
        overhead_s = request_s(server, 10 * rounds)
    return {
        "step_s": [[n, round(min(times), 6)] for n, times in steps.items()],
        "read_s": [[n, round(min(times), 6)] for n, times in reads.items()],
        "read_beside_s": [[n, round(min(s for s, _ in found), 6)] for n, found in both.items()],
        "step_beside_s": round(min(step for _, step in both[64]), 6),
        "load_s": [[size, round(taken, 6)] for size, taken in loads],
        "request_s": round(overhead_s, 6),
        "seats": seats,
        "capacity_tokens": capacity.tokens,
        "token_bytes": round(token_bytes),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", type=Path, help="a model's file; default: SmolLM2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--seats", type=int, default=16, help="sequences in memory")
    parser.add_argument("--running", type=int, default=8, help="the most that decode together")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    path = Setting(args.threads, args.path).model()
    tables = calibrate(path, args.threads, args.window, args.seats, args.running, args.rounds)
    report("cluster_calibration", {"model": path.name, "threads": args.threads, **tables})


if __name__ == "__main__":
    main()
