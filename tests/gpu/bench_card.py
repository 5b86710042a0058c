"""How fast models of random weights stream on this machine's card.

    python -m tests.gpu.bench_card FILE --models build/models [--limit-s 180] [--rehearse]

- copy: bytes/s, read and written, of torch's copy within the card; shares are of this bandwidth.
- rate: tokens/s of n streams together, greedy, as the engine counts them in a span of time in which
  all n decode and nobody reads. Each has a prompt of 16 tokens, so that weights are most of what
  a step reads.
- share: bytes that a step has to read (`Model.bytes_read_per_token`, once the weights and each
  stream's live tokens) times steps/s, over copy.
- prefill: tokens/s from a request to its first token, median of three prompts that share nothing.
- between tokens: p50 and p99 of the time between two tokens of one stream at its reader, with more
  tokens evicted than the window has.

Every figure is written to FILE as soon as it is there; what does not fit into the limit is left out
and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import sinkstream
from sinkstream import cards
from tests.bench.figures import gaps_ms, quantile
from tests.bench.machine import ROOT
from tests.data import tiny
from tests.gpu.facts import tree
from tests.gpu.streams import prompt, wait_until_idle

Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    models: tuple[tuple[str, str], ...]
    window: int
    batches: tuple[int, ...]
    span_s: float  # in which streams are counted
    prompts: tuple[int, ...]
    tokens: int  # between which one stream is timed
    copy_bytes: int


FULL = Sizes(
    models=(
        ("qwen3-0.6b", "Q4_0"),
        ("qwen3-0.6b", "Q8_0"),
        ("qwen3-0.6b", "BF16"),
        ("llama-3.2-1b", "BF16"),
    ),
    window=4092,
    batches=(1, 8, 32, 64),
    span_s=2.0,
    prompts=(512, 4096),
    tokens=4000,
    copy_bytes=2 << 30,
)
SHORT = Sizes(
    models=(("tiny", "F32"),),
    window=12,
    batches=(1, 2),
    span_s=0.5,
    prompts=(8, 24),
    tokens=6,
    copy_bytes=1 << 22,
)
SINKS = 4
PROMPT = 16  # of streams that are counted
MOST_TOKENS = 1500  # of such a stream: nobody reads it, and with some 2,000 it would wait
LONGEST_S = 12.0  # that one stream is timed


# ---- models ----


def write_models(models: Sequence[tuple[str, str]], folder: Path) -> list[Path]:
    """Write the models that are not there, side by side, in processes that know no card."""
    program = str(ROOT / "tests/bench/random_gguf.py")
    writers = [
        subprocess.Popen([sys.executable, program, name, kind, str(folder)], stderr=sys.stdout)
        for name, kind in models
    ]
    statuses = [writer.wait() for writer in writers]
    if any(statuses):
        raise RuntimeError("bench_card: a model could not be written; see above")
    return [folder / f"{name}-{kind}.gguf" for name, kind in models]


def write_tiny(folder: Path) -> Path:
    """Write a model of three layers and a few thousand weights, if it is not there."""
    path = folder / "llama"
    return path if path.exists() else tiny.write_folder(tiny.build("llama"), path)


# ---- figures ----


def copy_rate(count: int) -> float:
    """Return bytes/s, read and written, of a copy within the card; the host's in a rehearsal."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.randint(0, 127, (count,), dtype=torch.int8, device=device)
    goal = torch.empty_like(source)
    seconds = []
    for _ in range(13):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(5):
            goal.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / 5)
    del source, goal
    if device == "cuda":
        torch.cuda.empty_cache()
    return 2 * count / statistics.median(seconds[3:])


def measure_rate(model: sinkstream.Model, batch: int, span_s: float) -> Figures:
    """Return what `batch` streams produce together."""
    streams = [
        model.stream(prompt(PROMPT, i), max_tokens=MOST_TOKENS, temperature=0, ignore_eos=True)
        for i in range(batch)
    ]
    before = wait_for_tokens(model, batch, 3 * batch)
    live = sum(stream.stats.live_tokens for stream in streams)
    started = time.perf_counter()
    enough = before["generated_tokens"] + batch * MOST_TOKENS * 3 // 4
    while True:
        time.sleep(0.005)
        stats, seconds = model.stats(), time.perf_counter() - started
        if seconds >= span_s or stats["generated_tokens"] >= enough:
            break
    running = stats["running"]
    live = (live + sum(stream.stats.live_tokens for stream in streams)) // 2
    for stream in streams:
        stream.close()
    wait_until_idle(model)
    if running < batch or stats["parked"]:
        raise RuntimeError(f"rate: {batch} streams must decode all the time, but {running} did")
    tokens = stats["generated_tokens"] - before["generated_tokens"]
    steps = stats["steps"] - before["steps"]
    return {
        "tokens_per_s": tokens / seconds,
        "steps_per_s": steps / seconds,
        "bytes_per_step": model.bytes_read_per_token(live),
        "tokens": tokens,
    }


def wait_for_tokens(model: sinkstream.Model, batch: int, count: int) -> dict[str, Any]:
    """Return the counters once all streams decode and have made `count` tokens together."""
    begin = model.stats()["generated_tokens"]
    end = time.monotonic() + 60
    while True:
        stats = model.stats()
        if stats["running"] == batch and stats["generated_tokens"] - begin >= count:
            return stats
        if time.monotonic() > end:
            raise RuntimeError(f"rate: {batch} streams do not decode after 60 s: {stats}")
        time.sleep(0.0005)


def measure_prefill(model: sinkstream.Model, tokens: int) -> Figures:
    """Return how fast a prompt is read."""
    seconds = []
    for number in range(4):  # the first one warms up
        started = time.perf_counter()
        model.stream(prompt(tokens, number + 70), max_tokens=1, temperature=0).result()
        seconds.append(time.perf_counter() - started)
    middle = statistics.median(seconds[1:])
    return {"tokens_per_s": tokens / middle, "seconds": seconds[1:]}


def measure_gaps(model: sinkstream.Model, window: int, tokens: int) -> Figures:
    """Return quantiles of the time between tokens of one stream past its window."""
    stamps: list[float] = []
    with model.stream(prompt(2 * window + 16), temperature=0, ignore_eos=True) as stream:
        for event in stream.events():
            if isinstance(event, sinkstream.Token):
                stamps.append(time.perf_counter())
            if len(stamps) > tokens or (stamps and stamps[-1] - stamps[0] > LONGEST_S):
                break
        evicted = stream.stats.evicted_tokens
    if evicted <= window:
        raise RuntimeError(f"between tokens: {evicted} evicted tokens are no more than a window")
    gaps = gaps_ms([[stamp] for stamp in stamps])
    return {
        "tokens": len(gaps),
        "evicted_tokens": evicted,
        "p50_ms": quantile(gaps, 0.5),
        "p99_ms": quantile(gaps, 0.99),
        "longest_ms": max(gaps),
    }


def measure_model(path: Path, sizes: Sizes) -> Iterator[tuple[str, Figures]]:
    """Yield every figure of a model under its name."""
    started = time.perf_counter()
    with sinkstream.load(
        path, device="cuda", sinks=SINKS, window=sizes.window, max_sequences=max(sizes.batches)
    ) as model:
        loaded = {"seconds": time.perf_counter() - started, "runtime": model.runtime}
        yield "load", loaded | {"capacity": asdict(model.capacity)}
        for batch in sizes.batches:
            yield f"rate {batch}", measure_rate(model, batch, sizes.span_s)
        for tokens in sizes.prompts:
            yield f"prefill {tokens}", measure_prefill(model, tokens)
        yield "between tokens", measure_gaps(model, sizes.window, sizes.tokens)
    gc.collect()


# ---- the report ----


def main() -> int:
    """Measure what fits into the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--models", type=Path, required=True, help="where models are written")
    parser.add_argument("--limit-s", type=float, default=180.0)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model and few tokens")
    args = parser.parse_args()
    end = time.monotonic() + args.limit_s
    sizes = SHORT if args.rehearse else FULL

    card = cards.find()
    if isinstance(card, str):
        print(f"bench_card: there must be a card, but {card}")
        return 1
    report: Figures = {
        "card": card.name,
        "commit": tree(),
        "is_rehearsal": args.rehearse,
        "copy_bytes_per_s": copy_rate(sizes.copy_bytes),
        "models": {},
        "left_out": [],
    }

    def keep() -> None:
        args.file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    keep()
    paths = [write_tiny(args.models)] if args.rehearse else write_models(sizes.models, args.models)
    status = 0
    for (name, kind), path in zip(sizes.models, paths, strict=True):
        full_name = f"{name} {kind}"
        if time.monotonic() > end:
            report["left_out"].append(full_name)
            continue
        figures = report["models"].setdefault(full_name, {})
        try:
            for figure, values in measure_model(path, sizes):
                figures[figure] = values
                keep()
                print(f"{full_name}, {figure}: {values}", flush=True)
                if time.monotonic() > end:
                    report["left_out"].append(f"{full_name}, what follows {figure}")
                    break
        except (sinkstream.SinkstreamError, RuntimeError) as error:
            figures["error"] = f"{type(error).__name__}: {error}"
            print(f"{full_name}: {figures['error']}", flush=True)
            status = 1
    keep()
    return status


if __name__ == "__main__":
    sys.exit(main())
