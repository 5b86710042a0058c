"""The tests of structured output share a tiny model, whose text is random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream

pytest.importorskip("llguidance", reason="needs the extra `structured`")


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama"), sinks=4, window=60, threads=1, max_sequences=8
    ) as loaded:
        yield loaded
