"""A tiny checkpoint for the command line, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import sinkstream
from sinkstream.cli import main
from sinkstream.model import host_of


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
def line_breaks(checkpoint: str) -> dict[int, float]:
    """Return a bias with which a model writes U+0085, which JSON allows, again and again."""
    with sinkstream.load(checkpoint) as model:
        assert host_of(model).table is not None
        bias = {host_of(model).table.pieces.index(byte): 200.0 for byte in (b"\xc2", b"\x85")}
        reply = model.generate("a", seed=7, max_tokens=60, logit_bias=bias)
    assert "\x85" in reply.text
    return bias


@pytest.fixture(scope="session")
def checkpoint(tiny_folder: Callable[[str], Path]) -> str:
    """Return the path of a tiny checkpoint with a tokenizer."""
    return str(tiny_folder("llama"))
