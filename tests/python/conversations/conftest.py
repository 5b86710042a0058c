"""A tiny model with a short window, and a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from tests.python.conversations.stores import StoreLocation
from tests.python.conversations.talk import OPENED, SINKS, WINDOW, open_conversations


@pytest.fixture(scope="session")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama"), sinks=SINKS, window=WINDOW, threads=1, max_sequences=4
    ) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    """Close what the test has opened, so that it holds none of the model's memory."""
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def location(tmp_path: Path) -> Iterator[StoreLocation]:
    found = StoreLocation(tmp_path / "store")
    yield found
    found.close()


@pytest.fixture
def conversations(model: sinkstream.Model, tmp_path: Path) -> Conversations:
    return open_conversations(model, tmp_path / "store")
