"""Sixty thousand streams that are started and cancelled leak nothing.

Every second stream is cancelled at once, the others after their first token; the model has room for
two streams. Memory is RssAnon + VmSwap, sampled while the engine is idle, in the second half: the
first half fills what is filled once, such as the engine's record of its latest 4,096 steps.

- pages in use at the end. Goal: 0.
- slope: bytes per 1,000 streams, by least squares. Goal: indistinguishable from 0, that is at most
  twice its standard error plus one more page of 4 KiB, because memory is counted in pages.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

from figures import line
from memory_bench import anonymous_kib

from engine.row import Outcome, Row
from engine.setting import Readers, Setting, endless, prompt, tiny_checkpoint, wait_until_idle

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Sizes:
    """How many streams, and how many samples of memory."""

    streams: int = 60_000
    samples: int = 100
    capacity: int = 64


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure on a tiny model unless `--path` names another."""
    if setting.path is None:
        with tiny_checkpoint() as path:
            return churn(Setting(path, setting.threads), sizes)
    return churn(setting, sizes)


def churn(setting: Setting, sizes: Sizes) -> Outcome:
    """Start and cancel all streams on the setting's model."""
    every = max(1, sizes.streams // sizes.samples)
    # Allocated beforehand, so that storing samples does not change what they measure.
    sampled = array("q", bytes(8 * (sizes.streams // every)))
    with setting.load(capacity=sizes.capacity, max_sequences=2) as model:
        started = time.perf_counter()
        for number in range(1, sizes.streams + 1):
            stream = endless(model, prompt(4, number))
            if number % 2:
                Readers([stream]).read()
            stream.cancel()
            if number % every == 0:
                wait_until_idle(model, requests=number)
                sampled[number // every - 1] = 1024 * anonymous_kib()
        wait_until_idle(model, requests=sizes.streams)
        seconds = time.perf_counter() - started
        stats, threads = model.stats(), model.runtime["threads"]
    points = [((i + 1) * every, held) for i, held in enumerate(sampled)][len(sampled) // 2 :]
    found = line(points)
    most = found.most_if_flat(PAGE_BYTES, points[-1][0] - points[0][0])
    rows = [
        Row("streams started and cancelled", sizes.streams / seconds, "a second"),
        Row("streams that did not end as cancelled",
            sizes.streams - stats["finished"]["cancelled"], at_most=0),
        Row("pages in use at the end", stats["used_pages"], at_most=0),
        Row("slope of memory", 1000 * found.slope, "bytes for 1,000 streams", at_most=1000 * most,
            detail=f"± {1000 * found.error:.3g}; {points[0][1] / 1024:,.0f} KiB to "
            f"{points[-1][1] / 1024:,.0f} KiB"),
    ]  # fmt: skip
    return Outcome(rows, stats["evicted_tokens"], threads, {"streams, bytes": points})
