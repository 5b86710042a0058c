"""Fetches the sources of llama-cpp-python, which hold llama.cpp's, into pytest's cache.

They come from the package index and are never part of this repository.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.downloads import downloaded

SDIST = "llama-cpp-python==0.3.36"
LLAMA_CPP = "/vendor/llama.cpp/"


def files_of_sdist(config: pytest.Config, folder: str, wanted: Callable[[str], bool]) -> Path:
    """Return a folder with the wanted files of llama.cpp; skip the test if they cannot be had.

    Args:
        config: Knows the cache.
        folder: The folder's name in the cache.
        wanted: Whether a file is wanted, by its path in llama.cpp. It keeps this path.
    """
    assert config.cache is not None
    kept = config.cache.mkdir("llama.cpp") / SDIST / folder
    if not (kept / "complete").exists():
        with tarfile.open(downloaded(config, SDIST, "--no-binary", ":all:")) as sources:
            for member in sources.getmembers():
                path = member.name.partition(LLAMA_CPP)[2]
                if path and wanted(path) and (file := sources.extractfile(member)) is not None:
                    (kept / path).parent.mkdir(parents=True, exist_ok=True)
                    (kept / path).write_bytes(file.read())
        (kept / "complete").touch()
    return kept
