"""A server that stores responses, with the keys "a" and "b"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from openai import OpenAI

from tests.python.server.http.running_server import Running, running
from tests.python.server.responses.checking import client_of


@pytest.fixture(scope="module")
def server(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store, api_keys=("a", "b")) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Iterator[OpenAI]:
    with client_of(server) as found:
        yield found
