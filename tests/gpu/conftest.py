"""A GPU, real or emulated, and checkpoints; without a GPU nothing here can pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import devices
from tests.data import tiny
from tests.gpu.sizes import SINKS, SIZES

Load = Callable[..., sinkstream.Model]
WriteOnce = Callable[[str], Path]


def pytest_sessionstart() -> None:
    """End at once where there is no GPU: tests that are skipped would look like a success."""
    # A key that is read though it is not live then shows in every result.
    os.environ.setdefault("SINKSTREAM_POISON_PAGES", "1")
    if isinstance(found := devices.find_gpu(), str):
        pytest.exit(f"tests/gpu: there must be a GPU, but {found}", returncode=1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> WriteOnce:
    """Give the folder of a tiny checkpoint by name."""
    root = tmp_path_factory.mktemp("folders")

    def folder(name: str) -> Path:
        path = root / name
        return path if path.exists() else tiny.write_folder(tiny.build(name), path)

    return folder


@pytest.fixture
def load(tiny_folder: WriteOnce) -> Load:
    """Load a tiny checkpoint by name, or a file by path, onto the GPU unless told otherwise."""

    def load_one(name: str | Path = "llama", **options: Any) -> sinkstream.Model:
        asked: dict[str, Any] = {
            "device": "cuda",
            "dtype": "bfloat16",
            "sinks": SINKS,
            "window": SIZES.window,
            "max_sequences": 2,
            "prefill_chunk": SIZES.chunk,
        }
        path = name if isinstance(name, Path) else tiny_folder(name)
        return sinkstream.load(path, **(asked | options))

    return load_one
