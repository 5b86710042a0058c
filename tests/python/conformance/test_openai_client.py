"""The script of OpenAI's client that `make conformance` runs, on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("openai", reason="openai is not installed")

from tests.conformance.clients import openai_client
from tests.python.server.http.running_server import running

pytestmark = pytest.mark.full


def test_openais_client_is_served(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama"), sequences=6) as server:
        openai_client.main(f"http://127.0.0.1:{server.port}/v1")
