"""The tests of structured output share a tiny model, whose text is random."""

from __future__ import annotations

import itertools
import time
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


_names = itertools.count()


@pytest.fixture(autouse=True)
def _compilers_are_free(model: sinkstream.Model) -> None:
    """Wait for slow grammars of earlier tests, which keep compiling after they are refused."""
    end = time.monotonic() + 120
    while True:
        try:
            model.generate([5], grammar=f'start: "free {next(_names)}"', max_tokens=1)
        except sinkstream.CapacityError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return
