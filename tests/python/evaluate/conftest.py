"""A tiny model in float32, its definition, a model that answers from a script, and a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import sinkstream
from sinkstream.cli import main
from sinkstream.evaluate import PerplexityResult
from tests.data import tiny
from tests.python.cli.conftest import Outcome, Run
from tests.reference.decoder import Decoder

SINKS, WINDOW = 4, 21


@pytest.fixture(scope="session")
def checkpoint(tiny_folder: Callable[[str], Path]) -> str:
    """Give the path of a tiny checkpoint that has a tokenizer."""
    return str(tiny_folder("llama"))


@pytest.fixture(scope="session")
def model(checkpoint: str) -> Iterator[sinkstream.Model]:
    """Give that checkpoint, loaded in float32 with a small window."""
    with sinkstream.load(
        checkpoint, dtype="float32", kv_dtype="float32", sinks=SINKS, window=WINDOW, threads=1
    ) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def definition() -> Decoder:
    """Give the literal float64 definition with the same weights."""
    drawn = tiny.build("llama")
    return Decoder.from_hugging_face(drawn.config, drawn.weights)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Give a function that runs a command in this process."""

    def call(*arguments: str | Path) -> Outcome:
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


def random_ids(tokens: int, vocab: int = 293) -> np.ndarray:
    """Draw ids; the same number gives the same ones."""
    return np.random.default_rng(tokens).integers(0, vocab, tokens)


def make_result(method: str = "sinks", **changes: object) -> PerplexityResult:
    """Return a result of 2,500 tokens in blocks of 1,000 that no model has made."""
    settings = {
        "model": "a model", "text": "00", "text_tokens": 2500, "sinks": 4, "window": 1020,
        "block": 1000, "sample": None, "trained_length": 2048, "bytes_per_token": 4096,
    }  # fmt: skip
    values: dict[str, object] = {
        "perplexity": float(np.exp(3.1)),
        "mean_nll": 3.1,
        "block_mean_nll": (3.5, 3.0, 2.5),
        "standard_error": 0.1,
        "tokens": 2499,
        "method": method,
        "settings": settings,
        "block_tokens": (999, 1000, 500),
        "block_seconds": (1.0, 2.0, 1.0),
        "bits_per_byte": 1.25,
    }
    return PerplexityResult(**{**values, **changes})  # type: ignore[arg-type]
