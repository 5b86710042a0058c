"""Measures how a long prompt that arrives disturbs running streams.

One thread reads streams with full caches, one token of each at a time. Halfway through, a request
with a prompt of 32,000 tokens arrives. A gap is the time between two tokens of one stream, as the
reader receives them.

- undisturbed: the median gap before the prompt arrives and after it has been read.
- while it is read: gaps that end between the call and the prompt's own token.
- an empty loop as long as the undisturbed gap, afterwards: the machine's own jitter.
- Goal: the 99th percentile of gaps while it is read is at most 2.2 × the undisturbed median. With
  experts, streams wait for longer chunks, but keep about half of their speed.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from figures import gaps_ms, quantile
from noise import empty_loops, loop_iterations

from engine.row import Outcome, Row
from engine.setting import Readers, Setting, endless, prompt

GOAL = 2.2


@dataclass(frozen=True)
class Sizes:
    """The size of the prompt, and of the streams that run."""

    streams: int = 16
    capacity: int = 256
    tokens: int = 32_000  # of the prompt
    undisturbed: int = 100  # tokens of each stream before, and after
    loops: int = 300


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Read the streams before, during and after the prompt."""
    with setting.load(capacity=sizes.capacity, max_sequences=sizes.streams + 1) as model:
        readers = Readers(
            [
                endless(model, prompt(sizes.capacity, number))
                for number in range(1, sizes.streams + 1)
            ]
        )
        readers.read()
        before = [readers.read() for _ in range(sizes.undisturbed + 1)]
        started = time.perf_counter()
        arrival = endless(model, prompt(sizes.tokens), max_tokens=1)
        during = [before[-1]]
        while arrival.stats.time_to_first_token_s is None:
            during.append(readers.read())
        seconds = time.perf_counter() - started
        after = [readers.read() for _ in range(sizes.undisturbed + 1)]
        evicted, threads = model.stats()["evicted_tokens"], model.runtime["threads"]
        chunk = model.runtime["prefill_chunk"]
    undisturbed = gaps_ms(before) + gaps_ms(after)
    disturbed = gaps_ms(during)
    usual, p99 = statistics.median(undisturbed), quantile(disturbed, 0.99)
    loops = empty_loops(loop_iterations(usual), sizes.loops)
    rows = [
        Row("undisturbed gap, median", usual, "ms",
            detail=f"before {statistics.median(gaps_ms(before)):.3g}, "
            f"after {statistics.median(gaps_ms(after)):.3g}"),
        Row("undisturbed gap, p99", quantile(undisturbed, 0.99), "ms"),
        Row("while the prompt is read: gap, median", statistics.median(disturbed), "ms"),
        Row("while the prompt is read: gap, p99", p99, "ms",
            detail=f"{len(disturbed):,} gaps, largest {max(disturbed):.3g}"),
        Row("p99 while it is read / undisturbed median", p99 / usual, "×", at_most=GOAL),
        Row("the streams' speed while it is read / undisturbed",
            usual / statistics.mean(disturbed), "×"),
        Row("an empty loop, p99 / median", quantile(loops, 0.99) / statistics.median(loops), "×"),
        Row("the prompt", sizes.tokens / seconds, "tokens/s",
            detail=f"{seconds:.3g} s, chunks of {chunk}"),
    ]  # fmt: skip
    return Outcome(rows, evicted, threads)
