"""Fixtures: a GPU, real or emulated, and checkpoints. Without a GPU the session ends."""

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
    """Exit if there is no GPU: skipped tests would look like success."""
    # A read of a key that is not live then shows in every result.
    os.environ.setdefault("SINKSTREAM_POISON_PAGES", "1")
    if isinstance(found := devices.find_gpu(), str):
        pytest.exit(f"tests/gpu: a GPU is required, but {found}", returncode=1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> WriteOnce:
    """Return the folder of a tiny checkpoint by name."""
    root = tmp_path_factory.mktemp("folders")

    def folder(name: str) -> Path:
        path = root / name
        return path if path.exists() else tiny.write_folder(tiny.build(name), path)

    return folder


@pytest.fixture
def load(tiny_folder: WriteOnce) -> Load:
    """Load a tiny checkpoint by name, or a file by path; on the GPU by default."""

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
