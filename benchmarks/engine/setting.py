"""What the parts share: the model they run, prompts, and readers."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import ROOT

import sinkstream

SINKS = 4


@dataclass(frozen=True)
class Setting:
    """What all parts are run with."""

    path: str | None = None  # None: SmolLM2
    threads: int | None = None  # None: as many as `load` takes; a part may need a number of its own

    def load(
        self, *, capacity: int, max_sequences: int, threads: int | None = None
    ) -> sinkstream.Model:
        """Load the model with 4 sinks and a window that makes up the capacity."""
        return sinkstream.load(
            self.path,
            sinks=SINKS,
            window=capacity - SINKS,
            max_sequences=max_sequences,
            threads=threads or self.threads,
        )


@contextmanager
def tiny_checkpoint() -> Iterator[str]:
    """Give the folder of a model of three layers and a few thousand weights."""
    sys.path.insert(0, str(ROOT))
    from tests.data import tiny

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny"
        tiny.write_folder(tiny.build("llama"), path, shards=1)
        yield str(path)


def prompt(tokens: int, number: int = 0) -> list[int]:
    """Return ids that every model has; prompts of different numbers share no beginning."""
    return [3 + (101 * number + i) % 251 for i in range(tokens)]


def endless(model: sinkstream.Model, ids: list[int], **options: Any) -> sinkstream.Stream:
    """Start a stream that does not end by itself, and draws the likeliest tokens."""
    return model.stream(ids, **{"ignore_eos": True, "temperature": 0, **options})


class Readers:
    """Streams that one thread reads in turn, a token of each at a time, as they come."""

    def __init__(self, streams: Sequence[sinkstream.Stream]) -> None:
        self._events = [stream.events() for stream in streams]

    def read(self) -> list[float]:
        """Wait for one token of every stream; return when each was there."""
        return [self._read_one(events) for events in self._events]

    def _read_one(self, events: Iterator[sinkstream.Event]) -> float:
        for event in events:
            if isinstance(event, sinkstream.Token):
                return time.perf_counter()
        raise RuntimeError("a stream has ended while it was measured")


def is_idle(model: sinkstream.Model, requests: int = 0) -> bool:
    """Tell whether nothing runs or waits and all pages are back, after so many requests."""
    stats = model.stats()
    return (
        stats["requests"] >= requests
        and stats["running"] == stats["waiting"] == 0
        and stats["free_pages"] == stats["pages"]
    )


def wait_until_idle(model: sinkstream.Model, limit_s: float = 60, requests: int = 0) -> float:
    """Return the monotonic time at which the model is seen idle, right to half a millisecond.

    Args:
        model: The model.
        limit_s: What is too long.
        requests: How many have been made, where one may not have been taken up: the engine looks
            idle until it is.
    """
    end = time.monotonic() + limit_s
    while not is_idle(model, requests):
        if time.monotonic() > end:
            raise TimeoutError(f"the engine is not idle after {limit_s:g} s")
        time.sleep(0.0005)
    return time.monotonic()
