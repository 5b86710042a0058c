"""Stops the thread of a model's engine at the end of a step, as a hung device or disk would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import sinkstream
from sinkstream import _core

_FULL = 2**64 - 2


@contextmanager
def stopped_engine(model: sinkstream.Model) -> Iterator[None]:
    """Stop the engine; let it continue at the end. Takes one of the model's sequences.

    The engine rings an event loop's bell at the end of a step. This one's counter is full and
    blocks, so that the thread waits until the counter is read.
    """
    bell = _core.LoopBell()
    os.eventfd_write(bell.fileno(), _FULL)
    os.set_blocking(bell.fileno(), True)
    with model.stream([5], max_tokens=10**9, ignore_eos=True, seed=1) as stream:
        while not stream._native.ring_when_ready(bell):
            stream.skip_ready()
        try:
            yield
        finally:
            os.eventfd_read(bell.fileno())
