"""The first line of an error, for the error that is raised in its place."""

from __future__ import annotations

from sinkstream.checkpoint.quoting import first_line


def test_the_first_line_of_an_error() -> None:
    assert first_line(OSError("\n no route\nto host\n")) == "no route"
    assert first_line(ConnectionError("  ")) == "ConnectionError"
