"""`sinkstream serve`: its options are the server's settings."""

from __future__ import annotations

import inspect

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
