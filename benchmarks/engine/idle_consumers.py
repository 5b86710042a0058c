"""What active streams lose beside a hundred consumers that never read.

The idle streams run until they are parked: with 20 alternatives for each token that takes some 50
tokens. Then the active ones, which one thread reads in turn, are timed; then the idle ones are
closed, and the active ones are timed alone. So it goes round by round.

- rate: tokens/s of the active streams together, in the reader's hands.
- Goal: the rate beside idle consumers is at least 95 % of the rate alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from figures import ratios

import sinkstream
from engine.row import Outcome, median_row
from engine.setting import Readers, Setting, endless, prompt

GOAL = 0.95
ALTERNATIVES = 20  # what `logprobs` allows: the sooner such a stream is parked


@dataclass(frozen=True)
class Sizes:
    """How many there are, and how long is measured."""

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
    """Start streams that nobody reads, and read the others until those are parked."""
    idle = [endless(model, prompt(4, number + 1), logprobs=ALTERNATIVES) for number in range(count)]
    while model.stats()["parked"] < count:
        readers.read()
    return idle


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure by turns."""
    beside, alone = [], []
    room = sizes.active + sizes.idle
    with setting.load(capacity=sizes.capacity, max_sequences=room) as model:
        # Their caches are full from the beginning, so that no token costs more than another.
        active = [
            endless(model, prompt(sizes.capacity, -number - 1)) for number in range(sizes.active)
        ]
        readers = Readers(active)
        readers.read()
        for _ in range(sizes.rounds):
            idle = start_idle(model, readers, sizes.idle)
            beside.append(rate(readers, sizes.active, sizes.tokens))
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
        median_row(f"{name} beside {sizes.idle} idle", beside, "tokens/s"),
        median_row("beside / alone", ratios(beside, alone), at_least=GOAL),
    ]
    return Outcome(rows, evicted, threads, {"alone": alone, "beside": beside})
