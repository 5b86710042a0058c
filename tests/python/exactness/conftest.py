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
    """Give a tiny model by name, loaded once for each set of options.

    In float32 and on one thread, unless the options say otherwise: steps of a tiny model are
    shorter than it takes to wake a second one. Caches bring their own sinks and window.
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
