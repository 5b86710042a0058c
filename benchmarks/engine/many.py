"""Thousands of streams at once: all finish, none starves, memory is as announced.

2,000 streams of a tiny model with a cache of 64 tokens each, then 200 of SmolLM2 (or `--path`) with
256, all started at once with different prompts and read to their ends.

- unfinished: streams that did not end on `max_tokens` with that many tokens. Goal: 0.
- unfairness: the median stream's rate over the slowest one's, each from its first token to its
  last, as the engine timed it. Goal: at most 1.5.
- memory / announced: the peak memory (RssAnon + VmSwap) of this process less that of a process
  which runs one stream, over the same difference of `model.capacity`. Imports, tokenizer and
  weights cancel out. Goal, for the model with caches of a real size: at most 1.05.
- memory outside `capacity`, per stream: the stream object and its waiting text. Goal: at most
  64 KiB, the bound of the text that waits in a stream.
"""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from figures import unfairness
from memory_bench import anonymous_kib

from engine.row import Outcome, Row
from engine.setting import Setting, endless, prompt, tiny_checkpoint

MOST_UNFAIR = 1.5
MOST_MEMORY = 1.05
MOST_OUTSIDE_KIB = 64


@dataclass(frozen=True)
class Sizes:
    """How many streams of each model, and their lengths."""

    tiny_streams: int = 2000
    tiny_capacity: int = 64
    streams: int = 200
    capacity: int = 256
    prompt: int = 16
    tokens: int = 64


@dataclass(frozen=True)
class Run:
    """The results of streams that ran at once."""

    unfinished: int
    rates: list[float]  # tokens/s of each
    first_token_s: list[float]
    grown_kib: int  # from before the load to the highest sample while they ran
    announced_kib: int
    evicted_tokens: int
    threads: int


def run_streams(setting: Setting, capacity: int, streams: int, sizes: Sizes) -> Run:
    """Load the model, start all streams at once, and read them to their ends."""
    before = anonymous_kib()
    with setting.load(capacity=capacity, max_sequences=streams) as model:
        running = [
            endless(model, prompt(sizes.prompt, number), max_tokens=sizes.tokens)
            for number in range(streams)
        ]
        highest, results = 0, []
        for stream in running:
            results.append(stream.result())
            highest = max(highest, anonymous_kib())
        announced = model.capacity
        return Run(
            unfinished=sum(
                result.finish_reason != "length" or len(result.token_ids) != sizes.tokens
                for result in results
            ),
            rates=[result.stats.tokens_per_s or 0 for result in results],
            first_token_s=[result.stats.time_to_first_token_s or 0 for result in results],
            grown_kib=highest - before,
            announced_kib=(announced.weight_bytes + announced.cache_bytes + announced.scratch_bytes)
            // 1024,
            evicted_tokens=model.stats()["evicted_tokens"],
            threads=model.runtime["threads"],
        )


def run_in_a_process(setting: Setting, capacity: int, streams: int, sizes: Sizes) -> Run:
    """Run the streams in a new process, whose memory is measured."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(run_streams, setting, capacity, streams, sizes).result()


def rows_of(name: str, many: Run, one: Run, most_memory: float | None) -> list[Row]:
    """Return the rows of one model."""
    streams = len(many.rates)
    name = f"{streams:,} streams, {name}"
    grown, announced = many.grown_kib - one.grown_kib, many.announced_kib - one.announced_kib
    per_stream = (grown - announced) / (streams - 1)
    spread = f"{min(many.rates):.3g} – {max(many.rates):.3g} tokens/s"
    first = statistics.median(many.first_token_s)
    return [
        Row(f"{name}: unfinished", many.unfinished, at_most=0),
        Row(f"{name}: unfairness", unfairness(many.rates), "×", at_most=MOST_UNFAIR, detail=spread),
        Row(
            f"{name}: largest wait for a first token",
            max(many.first_token_s),
            "s",
            detail=f"median {first:.3g}",
        ),
        Row(
            f"{name}: memory / announced",
            grown / announced,
            "×",
            at_most=most_memory,
            detail=f"{grown / 1024:.1f} of {announced / 1024:.1f} MiB",
        ),
        Row(f"{name}: memory outside it, per stream", per_stream, "KiB", at_most=MOST_OUTSIDE_KIB),
    ]


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Run both models, each with many streams and with one."""
    rows = []
    with tiny_checkpoint() as path:
        tiny = Setting(path, setting.threads)
        one = run_in_a_process(tiny, sizes.tiny_capacity, 1, sizes)
        many = run_in_a_process(tiny, sizes.tiny_capacity, sizes.tiny_streams, sizes)
    rows += rows_of("tiny model", many, one, None)
    evicted = many.evicted_tokens
    one = run_in_a_process(setting, sizes.capacity, 1, sizes)
    many = run_in_a_process(setting, sizes.capacity, sizes.streams, sizes)
    rows += rows_of("model", many, one, MOST_MEMORY)
    return Outcome(rows, evicted + many.evicted_tokens, many.threads)
