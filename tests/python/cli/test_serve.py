"""`sinkstream serve`: its options are the server's settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from sinkstream.cli import main
from sinkstream.cli.serve import serve
from sinkstream.server.config import ServerConfig


def test_defaults_are_those_of_the_settings() -> None:
    config = ServerConfig()
    given = {
        name: parameter.default
        for name, parameter in inspect.signature(serve).parameters.items()
        if hasattr(config, name) and parameter.default is not None
    }
    assert given == {name: getattr(config, name) for name in given}
    assert len(given) >= 10


def test_the_heap_of_a_process_that_only_serves_is_kept_small(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve()` is also called in threads of other programs, whose heap is not its own."""
    called: list[str] = []
    monkeypatch.setattr(
        "sinkstream.server.process_settings.keep_heap_small", lambda: called.append("kept")
    )
    monkeypatch.setattr("sinkstream.server.serve.serve", lambda *_, **__: called.append("served"))
    assert main(["serve", str(tiny_folder("llama"))]) == 0
    assert called == ["kept", "served"]
