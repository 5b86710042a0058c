"""A GPU emulated on the CPU: the CUDA kernels through the emulator of tests/cpp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _newest() -> Path | None:
    found = [Path(os.environ["SINKSTREAM_EMULATED_GPU"])] if _named() else []
    found += ROOT.glob("build*/tests/cpp/_cuda_emulated.so")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _named() -> bool:
    return bool(os.environ.get("SINKSTREAM_EMULATED_GPU"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an emulated GPU and return its library."""
    library = _newest()
    if library is None:
        pytest.skip("the C++ tests are not built: no emulated GPU in build/tests/cpp")
    monkeypatch.setenv("SINKSTREAM_CUDA_LIBRARY", str(library))
    return library
