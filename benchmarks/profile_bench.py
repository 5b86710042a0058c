"""Profiles the time of a token by kind of work, and counts its system calls.

    python benchmarks/profile_bench.py --live 1024
    python benchmarks/profile_bench.py --prompt 512
    python benchmarks/profile_bench.py --batch 32 --live 256

A child process streams with a full cache of `--live` tokens, or reads prompts of `--prompt` tokens
repeatedly, or takes steps of `--batch` sequences in such caches. `perf` samples the computing
threads for some seconds, and the samples are added up by kind of work; then it counts the system
calls of the whole process. Needs `perf`, and a build that keeps its symbols:

    pip install --no-build-isolation -C cmake.define.CMAKE_STRIP=/bin/true .
"""

from __future__ import annotations

import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from machine import report
from peers.peer import prompt

if TYPE_CHECKING:
    import sinkstream

# Functions that lay out inputs, and the loops over threads that call them; some names are mangled.
LAYING_OUT = (
    r"prepare_(token|band_token)"
    r"|^\[\.\] sinkstream::\(anonymous namespace\)::run_linear.*\(long, long\)#1\}::op"
    r"|(run|of)<sinkstream::\(anonymous namespace\)::lay_out_inputs"
    r"|2ofIZNS_12_GLOBAL__N_114lay_out_inputs"
)
# The first pattern that matches a symbol gives its kind of work.
KINDS = (
    ("the system", r"^\[k\]"),
    ("inputs of products", LAYING_OUT),
    (
        "products of weights",
        r"PanelFormat|run_linear|share_panels|multiply_(few|many|panel|bf16|share)"
        r"|decode_units|add_units",
    ),
    ("attention", r"attend|multiply_rows|multiply_tile|add_values|join|finish"),
    ("norms", r"normalize"),
    ("rotation", r"rope"),
    ("short convolutions", r"convolve"),
    ("activation", r"activate_rows"),
    ("sums, caps and limits of elements", r"for_each_vector"),
    ("appending to the cache", r"append"),
    ("embedding", r"embedding"),
    ("logits and sampling", r"logits|sample|log_sum_exp|Sampler"),
    ("handing out work and waiting", r"ThreadPool"),
)
SINKS = 4
THREADS = ("sinkstream", "sinkstream pool")
STEPPING = "stepping"  # the name of the thread that steps a batch


def kind_of(symbol: str) -> str:
    """Return the kind of work of a symbol."""
    for kind, pattern in KINDS:
        if re.search(pattern, symbol):
            return kind
    return "all else"


def read_samples(listing: str) -> dict[str, float]:
    """Add up `perf report` lines of `period<tab>symbol` by kind of work, as shares of all."""
    periods: collections.Counter[str] = collections.Counter()
    for line in listing.splitlines():
        period, _, symbol = line.strip().partition("\t")
        if period.strip().isdigit():
            periods[kind_of(symbol.strip())] += int(period)
    total = sum(periods.values())
    return {kind: period / total for kind, period in periods.most_common()}


def step(model: sinkstream.Model, batch: int, live: int) -> Iterator[None]:
    """Take steps of a batch of sequences with `live` cached tokens each; never ends."""
    import torch

    cache = model.new_cache(batch, sinks=SINKS, window=live - SINKS)
    ids = torch.tensor([prompt(live)]).expand(batch, -1).contiguous()
    model.forward(ids, cache)
    while True:
        model.forward(ids[:, :1].contiguous(), cache)
        yield


def work(path: str | None, live: int, tokens: int, batch: int, threads: int) -> None:
    """Stream, read prompts of `tokens`, or step a batch, until stdin is closed.

    The first line on stdout says that it is warm. For each line on stdin it prints one more: the
    tokens read and written so far, and the tokens evicted.
    """
    import sinkstream

    enough = threading.Event()
    stepped = [0]  # tokens of batches, which the model does not count

    def answer(model: sinkstream.Model) -> None:
        for _ in sys.stdin:
            stats = model.stats()
            seen = stats["prompt_tokens"] + stats["generated_tokens"]
            evicted = stats["evicted_tokens"]
            print(seen + stepped[0], evicted + stepped[0], flush=True)
        enough.set()

    window = max(live, tokens) - SINKS
    options = {"threads": threads, "sinks": SINKS, "window": window, "max_sequences": 1}
    with sinkstream.load(path, speculation=0, **options) as model:
        threading.Thread(target=answer, args=(model,), daemon=True).start()
        if batch:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(STEPPING)
            for _ in step(model, batch, live):
                if stepped[0] == 0:
                    print("warm", flush=True)
                stepped[0] += batch
                if enough.is_set():
                    break
        elif tokens:
            model.generate(prompt(tokens), max_tokens=1)
            print("warm", flush=True)
            while not enough.is_set():
                model.generate(prompt(tokens), max_tokens=1)
        else:
            with model.stream(prompt(live), ignore_eos=True, temperature=0) as stream:
                for number, _ in enumerate(stream.events()):
                    if number == 16:
                        print("warm", flush=True)
                    if enough.is_set():
                        break


def perf(*words: str) -> str:
    """Run perf and return its output."""
    done = subprocess.run(["perf", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"profile_bench: perf {words[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout + done.stderr


def profile(pid: int, seconds: int) -> dict[str, float]:
    """Return the share of each kind of work in the threads that compute."""
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        perf("record", "-q", "-F", "1999", "-o", data, "-p", str(pid), "--", "sleep", str(seconds))
        listing = perf(
            *("report", "-q", "-i", data, "--stdio", "--no-children"),
            *("--comms", ",".join((*THREADS, STEPPING))),
            *("--field-separator", "\t", "--fields", "period,symbol"),
        )
    shares = read_samples(listing)
    if shares.get("products of weights", 0) == 0:
        sys.exit("profile_bench: the build has no symbols. `--help` shows how to build with them.")
    return shares


def count_calls(pid: int, seconds: int) -> dict[str, int]:
    """Return the system calls of all threads of a process during some seconds, by name."""
    listing = perf("trace", "-s", "-p", str(pid), "--", "sleep", str(seconds))
    calls: collections.Counter[str] = collections.Counter()
    for name, count in re.findall(r"^\s+(\w+)\s+(\d+)\s+\d+\s+[\d.]+", listing, re.MULTILINE):
        calls[name] += int(count)
    return dict(calls.most_common())


def ask(child: subprocess.Popen[str]) -> tuple[int, int]:
    """Return the tokens that the process has read and written, and those that it has evicted."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    seen, evicted = child.stdout.readline().split()
    return int(seen), int(evicted)


def main() -> None:
    """Profile a process of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", type=int, default=1024, help="tokens in the cache, at least 16")
    parser.add_argument(
        "--prompt", type=int, default=0, help="read prompts of N tokens instead", metavar="N"
    )
    parser.add_argument(
        "--batch", type=int, default=0, help="step N sequences instead", metavar="N"
    )
    parser.add_argument("--path", default=None, help="a checkpoint [SmolLM2]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args.path, args.live, args.prompt, args.batch, args.threads)
    if shutil.which("perf") is None:
        sys.exit("profile_bench: perf is not installed (Debian: apt-get install linux-perf).")
    command = [sys.executable, __file__, *sys.argv[1:], "--work"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            if child.stdout.readline() != "warm\n":
                sys.exit("profile_bench: the process to profile has ended.")
            shares = profile(child.pid, args.seconds)
            before, started = ask(child)[0], time.perf_counter()
            calls = count_calls(child.pid, args.seconds)
            (after, evicted), ended = ask(child), time.perf_counter()
            child.stdin.close()
        finally:
            child.kill()
    # perf takes time to start and to stop.
    tokens = (after - before) * args.seconds / (ended - started)
    model = Path(args.path).stem if args.path else "smollm2"
    what = f"prompt-{args.prompt}" if args.prompt else f"token-{args.live}"
    if args.batch:
        what = f"batch-{args.batch}-{args.live}"
    report(
        f"profile-{model}-{what}-{args.threads}",
        {
            "tokens": args.prompt or args.live,
            "sequences": args.batch or 1,
            "threads": args.threads,
            "evicted_tokens": evicted,
            "share of the threads that compute": {k: round(v, 4) for k, v in shares.items()},
            "system calls a token": {name: round(n / tokens, 2) for name, n in calls.items()},
        },
    )


if __name__ == "__main__":
    main()
