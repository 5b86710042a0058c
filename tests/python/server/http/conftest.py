"""Servers of a tiny model. The tests of a file share one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import Running, running
from tests.python.text.tool_templates import write_tool_folder


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


@pytest.fixture(scope="module")
def tooled(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Running]]:
    """Give servers that keep conversations, by the form of their model's calls."""
    found: dict[str, Running] = {}
    with ExitStack() as stack:

        def server(name: str) -> Running:
            if name not in found:
                root = tmp_path_factory.mktemp("tooled")
                folder = write_tool_folder(tiny_folder("llama"), root / "model", name)
                started = running(folder, store=str(root / "store"), sequences=3, sinks="4")
                found[name] = stack.enter_context(started)
            return found[name]

        yield server
