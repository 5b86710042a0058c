"""Measures how much a hundred consumers that never read slow down active streams.

In each round the idle streams run until they are parked: with 20 alternatives per token that takes
about 50 tokens. Then the active streams, which one thread reads round-robin, are timed; then the
idle ones are closed, and the active ones are timed alone.

- rate: tokens/s of all active streams, as the reader receives them.
- Goal: the rate with idle consumers is at least 95 % of the rate alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from figures import ratios

import sinkstream
from engine.row import Outcome, median_row
from engine.setting import Readers, Setting, endless, prompt

GOAL = 0.95
ALTERNATIVES = 20  # the most that `logprobs` allows, so that streams are parked soon


@dataclass(frozen=True)
class Sizes:
    """How many streams, and how many tokens."""

    active: int = 4
    idle: int = 100
    capacity: int = 128
    tokens: int = 100  # of each active stream in a round
    rounds: int = 7


def rate(readers: Readers, active: int, tokens: int) -> float:
    """Return tokens/s of the active streams."""
    readers.read()
    started = time.perf_counter()
    for _ in range(tokens):
        readers.read()
    return active * tokens / (time.perf_counter() - started)


def start_idle(model: sinkstream.Model, readers: Readers, count: int) -> list[sinkstream.Stream]:
    """Start streams that are never read, and read the others until those are parked."""
    idle = [endless(model, prompt(4, number + 1), logprobs=ALTERNATIVES) for number in range(count)]
    while model.stats()["parked"] < count:
        readers.read()
    return idle


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure interleaved."""
    with_idle, alone = [], []
    room = sizes.active + sizes.idle
    with setting.load(capacity=sizes.capacity, max_sequences=room) as model:
        # Their caches are full from the start, so that all tokens cost the same.
        active = [
            endless(model, prompt(sizes.capacity, -number - 1)) for number in range(sizes.active)
        ]
        readers = Readers(active)
        readers.read()
        for _ in range(sizes.rounds):
            idle = start_idle(model, readers, sizes.idle)
            with_idle.append(rate(readers, sizes.active, sizes.tokens))
            parked = model.stats()["parked"]
            if parked != sizes.idle:
                raise RuntimeError(f"{parked} of {sizes.idle} idle streams are parked")
            for stream in idle:
                stream.close()
            alone.append(rate(readers, sizes.active, sizes.tokens))
        evicted, threads = model.stats()["evicted_tokens"], model.runtime["threads"]
    name = f"{sizes.active} streams"
    rows = [
        median_row(f"{name} alone", alone, "tokens/s"),
        median_row(f"{name} with {sizes.idle} idle", with_idle, "tokens/s"),
        median_row("with idle / alone", ratios(with_idle, alone), at_least=GOAL),
    ]
    return Outcome(rows, evicted, threads, {"alone": alone, "with idle": with_idle})
