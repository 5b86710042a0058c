"""A tiny model with a short window, and stores that several replicas use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.cluster.postgres import MISSING, PostgresServer, programs
from tests.python.cluster.shared_stores import SharedLocation
from tests.python.conversations.conftest import closed_at_the_end, model

__all__ = ["closed_at_the_end", "model"]

_FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    folder = programs()
    if folder is None:
        pytest.skip(MISSING)
    server = PostgresServer(folder)
    yield server
    server.close()


@pytest.hookimpl(tryfirst=True)  # before the marks choose what runs
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder: they are a lane of their own."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.cluster)


_numbers = itertools.count()


def _closed(address: Path | str, tmp_path: Path) -> Iterator[SharedLocation]:
    """Give a location, and close what has been opened there."""
    found = SharedLocation(address, tmp_path / "snapshots")
    yield found
    found.close()


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[SharedLocation]:
    yield from _closed(tmp_path / "store", tmp_path)


@pytest.fixture
def in_postgres(postgres: PostgresServer, tmp_path: Path) -> Iterator[SharedLocation]:
    yield from _closed(postgres.new_database(f"test{next(_numbers)}"), tmp_path)


@pytest.fixture(params=["in_folder", "in_postgres"])
def location(request: pytest.FixtureRequest) -> SharedLocation:
    """Give the location of a new store of each kind."""
    found: SharedLocation = request.getfixturevalue(request.param)
    return found
