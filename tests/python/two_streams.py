"""A tiny model shared by the tests of a file, whose cache its streams soon outgrow.

The conftest.py of a folder imports the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    """Return the folder of a tiny checkpoint with a tokenizer."""
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[sinkstream.Model]:
    """Return a model with room for two streams."""
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as loaded:
        yield loaded
