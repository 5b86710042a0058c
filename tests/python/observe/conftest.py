"""A tiny model shared by the tests of a file; its engine is idle before each test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    """Return the folder of a tiny checkpoint with a tokenizer."""
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[sinkstream.Model]:
    """Return a model with room for two streams."""
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as loaded:
        yield loaded


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it does not come to pass")
        time.sleep(0.002)


def wait_until_idle(model: sinkstream.Model) -> None:
    """Wait until no request is waiting or running."""
    wait_until(lambda: model.stats()["waiting"] == model.stats()["running"] == 0)
