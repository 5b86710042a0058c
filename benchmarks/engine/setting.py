"""Shared by the parts: the model, prompts, and readers."""

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
    """The checkpoint and threads of all parts."""

    path: str | None = None  # None: SmolLM2
    threads: int | None = None  # None: the default of `load`; a part may set its own

    def load(
        self, *, capacity: int, max_sequences: int, threads: int | None = None
    ) -> sinkstream.Model:
        """Load the model with 4 sinks and the rest of the capacity as window. A token is a step."""
        return sinkstream.load(
            self.path,
            sinks=SINKS,
            window=capacity - SINKS,
            max_sequences=max_sequences,
            threads=threads or self.threads,
            speculation=0,
        )


@contextmanager
def tiny_checkpoint() -> Iterator[str]:
    """Write a model of three layers and a few thousand weights; yield its folder."""
    sys.path.insert(0, str(ROOT))
    from tests.data import tiny

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny"
        tiny.write_folder(tiny.build("llama"), path, shards=1)
        yield str(path)


def prompt(tokens: int, number: int = 0) -> list[int]:
    """Return ids that every model has; prompts of different numbers share no prefix."""
    return [3 + (101 * number + i) % 251 for i in range(tokens)]


def endless(model: sinkstream.Model, ids: list[int], **options: Any) -> sinkstream.Stream:
    """Start a greedy stream that does not end by itself."""
    return model.stream(ids, **{"ignore_eos": True, "temperature": 0, **options})


class Readers:
    """Streams that one thread reads round-robin, one token of each at a time."""

    def __init__(self, streams: Sequence[sinkstream.Stream]) -> None:
        self._events = [stream.events() for stream in streams]

    def read(self) -> list[float]:
        """Wait for one token of every stream; return the time at which each arrived."""
        return [self._read_one(events) for events in self._events]

    def _read_one(self, events: Iterator[sinkstream.Event]) -> float:
        for event in events:
            if isinstance(event, sinkstream.Token):
                return time.perf_counter()
        raise RuntimeError("a stream has ended while it was measured")


def is_idle(model: sinkstream.Model, requests: int = 0) -> bool:
    """Return whether nothing runs or waits and all pages are free, after `requests` requests."""
    stats = model.stats()
    return (
        stats["requests"] >= requests
        and stats["running"] == stats["waiting"] == 0
        and stats["free_pages"] == stats["pages"]
    )


def wait_until_idle(model: sinkstream.Model, limit_s: float = 60, requests: int = 0) -> float:
    """Return the monotonic time at which the model becomes idle, to within half a millisecond.

    Args:
        model: The model.
        limit_s: The timeout in seconds.
        requests: How many requests were made. The engine looks idle until it has taken up the last.
    """
    end = time.monotonic() + limit_s
    while not is_idle(model, requests):
        if time.monotonic() > end:
            raise TimeoutError(f"the engine is not idle after {limit_s:g} s")
        time.sleep(0.0005)
    return time.monotonic()
