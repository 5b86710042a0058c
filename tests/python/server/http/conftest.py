"""Servers of a tiny model. The tests of a file share one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import Running, running


@pytest.fixture(scope="module")
def server(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server without keys."""
    with running(tiny_folder("llama")) as found:
        yield found


@pytest.fixture(scope="module")
def locked(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server with the keys "right" and "other"."""
    with running(tiny_folder("llama"), api_keys=("right", "other")) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server with an additional host and an allowed origin."""
    hosts, origins = ("chat.example",), ("https://page.example",)
    with running(tiny_folder("llama"), allowed_hosts=hosts, cors_origins=origins) as found:
        yield found
