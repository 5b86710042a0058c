"""A tiny checkpoint for the command line, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sinkstream.cli import main


@dataclass(frozen=True)
class Outcome:
    """A command's output and exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command."""

    def call(*arguments: str) -> Outcome:
        code = main(arguments)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture(scope="session")
def checkpoint(tiny_folder: Callable[[str], Path]) -> str:
    """Return the path of a tiny checkpoint with a tokenizer."""
    return str(tiny_folder("llama"))
