"""A tiny model with a short window, and stores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from tests.python.conversations.postgres import MISSING, PostgresServer, programs
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


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    folder = programs()
    if folder is None:
        pytest.skip(MISSING)
    server = PostgresServer(folder)
    yield server
    server.close()


_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreLocation]:
    """Give the location of a new store of each kind."""
    address: Path | str = tmp_path / "store"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        address = server.new_database(f"store{next(_numbers)}")
    found = StoreLocation(address, tmp_path / "snapshots")
    yield found
    found.close()


@pytest.fixture
def conversations(model: sinkstream.Model, tmp_path: Path) -> Conversations:
    return open_conversations(model, tmp_path / "store")
