"""A tiny float32 model, its definition, the command line, and results without a model."""

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
from tests.reference.hugging_face import from_hugging_face

SINKS, WINDOW = 4, 21


@pytest.fixture(scope="session")
def checkpoint(tiny_folder: Callable[[str], Path]) -> str:
    """Return the path of a tiny checkpoint with a tokenizer."""
    return str(tiny_folder("llama"))


@pytest.fixture(scope="session")
def model(checkpoint: str) -> Iterator[sinkstream.Model]:
    """Load that checkpoint in float32, with a small window."""
    with sinkstream.load(
        checkpoint, dtype="float32", kv_dtype="float32", sinks=SINKS, window=WINDOW, threads=1
    ) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def definition() -> Decoder:
    """Return the literal float64 definition with the same weights."""
    drawn = tiny.build("llama")
    return from_hugging_face(drawn.config, drawn.weights)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process."""

    def call(*arguments: str | Path) -> Outcome:
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


def random_ids(tokens: int, vocab: int = 293) -> np.ndarray:
    """Return random ids; the same count gives the same ids."""
    return np.random.default_rng(tokens).integers(0, vocab, tokens)


def make_result(method: str = "sinks", **changes: object) -> PerplexityResult:
    """Return an invented result of 2,500 tokens in blocks of 1,000."""
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
