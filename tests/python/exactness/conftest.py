"""Tiny models that stay open for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from tests.python.exactness.streams import LoadOnce


@pytest.fixture(scope="session")
def loaded(tiny_folder: Callable[[str], Path]) -> Iterator[LoadOnce]:
    """Return a function that loads a tiny model by name, once for each set of options.

    The defaults are float32 and one thread: a step of a tiny model is shorter than waking a second
    thread. Caches have their own sinks and window.
    """
    models: dict[tuple[Any, ...], sinkstream.Model] = {}

    def load(name: str, **options: Any) -> sinkstream.Model:
        chosen = {"dtype": "float32", "kv_dtype": "float32", "threads": 1, "window": 64, **options}
        key = (name, *sorted(chosen.items()))
        if key not in models:
            models[key] = sinkstream.load(tiny_folder(name), **chosen)
        return models[key]

    yield load
    for model in models.values():
        model.close()
