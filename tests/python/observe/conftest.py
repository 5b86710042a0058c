"""A tiny model that the tests of a file share, with its engine idle before each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    """Give the folder of a tiny checkpoint that has a tokenizer."""
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[sinkstream.Model]:
    """Give a model with room for two streams."""
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
    """Wait until no request waits or runs."""
    wait_until(lambda: model.stats()["waiting"] == model.stats()["running"] == 0)
