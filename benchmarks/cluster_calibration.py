"""Measures the service times that `cluster_simulation.py` uses: of one replica, on this machine.

    BENCH_OUT=folder python benchmarks/cluster_calibration.py --threads 1 --window 1020 --seats 16
    BENCH_OUT=folder python benchmarks/cluster_calibration.py --processors 2

- `step_s`: a step by the number of sequences that decode, from the engine's own count of steps,
- `read_s`: time to the first token of a turn by its tokens, nothing else running,
- `read_while_decoding_s`, `step_while_reading_s`: the same while one sequence decodes, and its
  steps meanwhile,
- `load_s`: opening a saved session by the size of its file,
- `request_s`: a request of a server minus the time that the engine reports for it.

With `--processors`, also what engines lose if as many of them share as many processors:

- `together`: how many times as long a step takes as alone, if all engines are at work,
- `outside`: the same for opening a saved session,
- `token_s`, `turn_s`: the processor time outside of the engines, of the server and its clients, for
  each token of a reply, and for each turn in addition,
- `save_s`: writing a snapshot, by the size of its file.

Each sequence has a full window, as all but new conversations have. Each time is the least of
`--rounds`, because other work of the machine, and the wait for the end of a step, only add to it;
`request_s` is a median, and `outside`, `token_s` and `turn_s` are means. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import Manager
from pathlib import Path
from threading import Barrier
from typing import Any

from cluster.asking import ask
from cluster.processor_time import processor_time
from machine import report
from server.process import Server, sinkstream_server
from server.setting import Setting

import sinkstream
from sinkstream.streams.worker import wanted

TEXT = [28, 198, 104, 260, 42, 288, 105, 214]  # any tokens do
_STEPS = 40
_BUSY, _LOADS = 2, 8  # sequences that decode while a session is opened, as many times
_CLIENTS, _WORDS, _TOKENS = 4, 10, 64  # of a crowd, and of its turns


def ids(tokens: int) -> list[int]:
    """Return a prompt."""
    return (TEXT * (tokens // len(TEXT) + 1))[:tokens]


@contextmanager
def decoding(model: sinkstream.Model, sequences: int) -> Iterator[None]:
    """Let `sequences` sequences decode during the block."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(model.session()) for _ in range(sequences)]
        for session in sessions:
            session.append(ids(model.capacity.tokens))
        streams = [
            stack.enter_context(
                session.stream(ids(1), max_tokens=1 << 20, ignore_eos=True, seed=number)
            )
            for number, session in enumerate(sessions)
        ]
        while any(stream.stats.time_to_first_token_s is None for stream in streams):
            time.sleep(0.001)  # they are being read
        yield


def step_now_s(model: sinkstream.Model) -> float:
    """Return the time of a step of what the engine does."""
    begin, before = time.perf_counter(), model.stats()["steps"]
    while model.stats()["steps"] < before + _STEPS:
        time.sleep(0.001)
    return float((time.perf_counter() - begin) / (model.stats()["steps"] - before))


def step_s(model: sinkstream.Model, sequences: int) -> float:
    """Return the time of a step in which `sequences` decode."""
    with decoding(model, sequences):
        return step_now_s(model)


def read_s(session: sinkstream.Session, tokens: int) -> float:
    """Return the time to the first token of a turn."""
    with session.stream(ids(tokens), max_tokens=1, ignore_eos=True, seed=1) as stream:
        stats = stream.result().stats
    assert stats.time_to_first_token_s is not None
    return stats.time_to_first_token_s


def read_while_decoding_s(
    model: sinkstream.Model, session: sinkstream.Session, tokens: int
) -> tuple[float, float]:
    """Return the same while one sequence decodes, and the time of a step meanwhile."""
    with decoding(model, 1):
        before = model.stats()["steps"]
        begin = time.perf_counter()
        taken = read_s(session, tokens)
        passed, steps = time.perf_counter() - begin, model.stats()["steps"] - before
    return taken, passed / steps


def load_times(model: sinkstream.Model, tokens: int, rounds: int) -> tuple[int, list[float]]:
    """Return the size of a saved session, and the times to open it."""
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
        return path.stat().st_size, taken


def load_s(model: sinkstream.Model, tokens: int, rounds: int) -> tuple[int, float]:
    """Return the size of a saved session, and the least time to open it."""
    size, taken = load_times(model, tokens, rounds)
    return size, min(taken)


def save_s(model: sinkstream.Model, tokens: int, rounds: int) -> tuple[int, float]:
    """Return the size of a snapshot, and the time to write it as a server does."""
    taken = []
    with tempfile.TemporaryDirectory() as folder, model.session() as session:
        session.append(ids(tokens))
        for number in range(rounds):
            path = Path(folder) / f"{number}.session"
            begin = time.perf_counter()
            session._tokens.save(path, wanted, flush=False)
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


async def crowd(port: int, name: str, turns: int, tokens: int) -> None:
    """Let a few clients have conversations with replies of `tokens` tokens."""

    async def talk(session: str) -> None:
        previous = None
        for _ in range(turns):
            asked = await ask(port, session, previous, _WORDS, tokens)
            assert asked is not None
            previous = asked.response["id"]

    await asyncio.gather(*(talk(f"{name} {number}") for number in range(_CLIENTS)))


def outside_s(server: Server, turns: int) -> tuple[float, float]:
    """Return the processor time outside of the engine: of a token, and of the rest of a turn."""
    taken = []
    for tokens in (1, _TOKENS):
        asyncio.run(crowd(server.port, f"warm {tokens}", 1, tokens))
        before = processor_time([server.process.pid])
        asyncio.run(crowd(server.port, f"timed {tokens}", turns, tokens))
        passed = processor_time([server.process.pid]) - before
        taken.append(passed.outside / (turns * _CLIENTS))
    token_s = (taken[1] - taken[0]) / (_TOKENS - 1)
    return token_s, taken[0] - token_s


def times_with_others(
    path: Path, window: int, batches: Sequence[int], rounds: int, number: int, all_: Barrier
) -> tuple[list[float], list[float]]:
    """Return times alone, and while all processes decode: of steps by batches, and of a load.

    Only the first process measures times alone, and those of loads; the others wait, or decode.
    """
    is_first, alone, together = number == 0, [], []
    sequences = max(batches) + 1  # of which one is loaded
    with sinkstream.load(
        path, threads=1, window=window, max_sequences=sequences, speculation=0
    ) as model:

        def mean_load_s() -> float:
            return statistics.mean(load_times(model, model.capacity.tokens, _LOADS)[1])

        for batch in batches:
            all_.wait()
            if is_first:
                alone.append(min(step_s(model, batch) for _ in range(rounds)))
            all_.wait()
            with decoding(model, batch):
                all_.wait()
                together.append(min(step_now_s(model) for _ in range(rounds)))
                all_.wait()
        if is_first:
            alone.append(mean_load_s())
        all_.wait()
        with decoding(model, _BUSY):
            all_.wait()
            if is_first:
                together.append(mean_load_s())
            all_.wait()
    return alone, together


def with_others(
    path: Path, window: int, running: int, rounds: int, processors: int
) -> tuple[float, float]:
    """Return how many times as long steps, and loads, take if each processor has an engine."""
    batches = [batch for batch in (1, 2, 4, 8) if batch <= running]
    with Manager() as manager, ProcessPoolExecutor(processors) as pool:
        all_ = manager.Barrier(processors)
        tasks = [
            pool.submit(times_with_others, path, window, batches, rounds, number, all_)
            for number in range(processors)
        ]
        (alone, first), *others = [task.result() for task in tasks]
    steps = sum(first[:-1]) + sum(sum(together) for _, together in others)
    return steps / processors / sum(alone[:-1]), first[-1] / alone[-1]


def sharing(
    path: Path, window: int, seats: int, running: int, rounds: int, processors: int
) -> dict[str, Any]:
    """Return what engines with one thread lose to each other, and to what is outside of them."""
    steps, loads = with_others(path, window, running, rounds, processors)
    with sinkstream.load(
        path, threads=1, window=window, max_sequences=seats, speculation=0
    ) as model:
        capacity = model.capacity.tokens
        saves = [save_s(model, tokens, rounds) for tokens in sizes_of(capacity)]
    options = ["--model", str(path), "--threads", "1", "--window", str(window)]
    with sinkstream_server([*options, "--max-sequences", str(seats)]) as server:
        token_s, turn_s = outside_s(server, 4 * rounds)
    return {
        "processors": processors,
        "together": round(steps, 3),
        "outside": round(loads, 3),
        "token_s": round(token_s, 6),
        "turn_s": round(turn_s, 6),
        "save_s": [[size, round(taken, 6)] for size, taken in saves],
    }


def sizes_of(capacity: int) -> list[int]:
    """Return the tokens of snapshots to measure."""
    return sorted({16, capacity // 4, capacity})


def calibrate(
    path: Path, threads: int, window: int, seats: int, running: int, rounds: int
) -> dict[str, Any]:
    """Return the tables."""
    with sinkstream.load(
        path, threads=threads, window=window, max_sequences=seats, speculation=0
    ) as model:
        capacity = model.capacity
        batches = sorted({1, 2, 4, 8, running} & set(range(1, running + 1)))
        lengths = [tokens for tokens in (1, 16, 64, 256, 1024) if tokens <= capacity.tokens]
        steps = {n: [step_s(model, n) for _ in range(rounds)] for n in batches}
        with model.session() as session:
            session.append(ids(capacity.tokens))
            reads = {n: [read_s(session, n) for _ in range(rounds)] for n in lengths}
            both = {
                n: [read_while_decoding_s(model, session, n) for _ in range(rounds)]
                for n in lengths
            }
        loads = [load_s(model, tokens, rounds) for tokens in sizes_of(capacity.tokens)]
        token_bytes = loads[-1][0] / capacity.tokens
    options = ["--model", str(path), "--threads", str(threads), "--window", str(window)]
    with sinkstream_server(options) as server:
        overhead_s = request_s(server, 10 * rounds)
    return {
        "step_s": [[n, round(min(times), 6)] for n, times in steps.items()],
        "read_s": [[n, round(min(times), 6)] for n, times in reads.items()],
        "read_while_decoding_s": [
            [n, round(min(s for s, _ in found), 6)] for n, found in both.items()
        ],
        "step_while_reading_s": round(min(step for _, step in both[64]), 6),
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
    parser.add_argument("--processors", type=int, help="engines that share as many processors")
    args = parser.parse_args()
    path = Setting(args.threads, args.path).model()
    tables = calibrate(path, args.threads, args.window, args.seats, args.running, args.rounds)
    if args.processors:
        sizes = (args.window, args.seats, args.running, args.rounds, args.processors)
        tables["sharing"] = sharing(path, *sizes)
    report("cluster_calibration", {"model": path.name, "threads": args.threads, **tables})


if __name__ == "__main__":
    main()
