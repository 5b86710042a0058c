"""Threads that hold the GIL cost the engine nothing but the processor time they take.

A model with one thread generates for one consumer, which reads in its own thread. Meanwhile four
Python threads spin: nowhere, in this process, or in another one. Four threads of one process share
one GIL, so they take one core in both cases.

- rate: the engine's tokens/s, from its record of steps. The consumer's pace does not matter as long
  as its queue does not fill.
- Goal: with the threads in this process, at least 95 % of the rate with them in another one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import ratios

import sinkstream
from engine.row import Outcome, median_row
from engine.setting import Setting, endless, prompt
from engine.spin import spinning

GOAL = 0.95
SPIN = Path(__file__).with_name("spin.py")
NONE, INSIDE, OUTSIDE = "no threads spin", "they spin inside", "they spin outside"


@dataclass(frozen=True)
class Sizes:
    """How long each measurement takes."""

    capacity: int = 256
    spinners: int = 4
    seconds: float = 3.0  # of each measurement
    rounds: int = 9


@contextmanager
def spinning_outside(count: int) -> Iterator[None]:
    """Run the same threads in another process."""
    process = subprocess.Popen(
        [sys.executable, SPIN, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()  # they spin
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextmanager
def spinning_nowhere(count: int) -> Iterator[None]:
    """Run no threads."""
    yield


WAYS = {NONE: spinning_nowhere, INSIDE: spinning, OUTSIDE: spinning_outside}


def rate_between(model: sinkstream.Model, begin: float, end: float) -> float:
    """Return tokens/s of the steps that ended between two monotonic times."""
    ends = [step[3] for step in model._native.steps(0) if begin <= step[3] <= end and step[4] == 1]
    return (len(ends) - 1) / (ends[-1] - ends[0])


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure interleaved, in an order that rotates from round to round."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with setting.load(capacity=sizes.capacity, max_sequences=1, threads=1) as model:
        stream = endless(model, prompt(sizes.capacity))
        consumer = threading.Thread(target=stream.result)
        consumer.start()
        for number in range(sizes.rounds):
            ways = list(WAYS)
            for way in ways[number % 3 :] + ways[: number % 3]:
                with WAYS[way](sizes.spinners):
                    time.sleep(sizes.seconds / 10)  # the scheduler finds its balance
                    begin = time.monotonic()
                    time.sleep(sizes.seconds)
                    rates[way].append(rate_between(model, begin, begin + sizes.seconds))
        parked = model.stats()["parked"]
        stream.cancel()
        consumer.join()
        evicted = model.stats()["evicted_tokens"]
    if parked:
        raise RuntimeError("the consumer's queue has filled")
    rows = [median_row(way, rates[way], "tokens/s") for way in WAYS]
    rows += [
        median_row("inside / outside", ratios(rates[INSIDE], rates[OUTSIDE]), at_least=GOAL),
        median_row("outside / none", ratios(rates[OUTSIDE], rates[NONE])),
    ]
    return Outcome(rows, evicted, 1, {"tokens/s": rates})
