"""Fetches the sources of llama-cpp-python, which hold llama.cpp's test data, into pytest's cache.

They come from the package index and are never part of this repository.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

SDIST = "llama-cpp-python==0.3.36"


def files_of_sdist(config: pytest.Config, folder: str, wanted: Callable[[str], bool]) -> Path:
    """Return a folder with the wanted files of the sources; skip the test if they cannot be had.

    Args:
        config: Knows the cache.
        folder: The folder's name in the cache.
        wanted: Whether a file is wanted, by its path in the archive.
    """
    assert config.cache is not None
    cache = config.cache.mkdir(SDIST.replace("==", "-"))
    if not (cache / folder / "complete").exists():
        archive = next(cache.glob("*.tar.gz"), None) or _download(cache)
        (cache / folder).mkdir(exist_ok=True)
        with tarfile.open(archive) as sources:
            for member in sources.getmembers():
                if wanted(member.name) and (file := sources.extractfile(member)) is not None:
                    (cache / folder / Path(member.name).name).write_bytes(file.read())
        (cache / folder / "complete").touch()
    return cache / folder


def _download(cache: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    try:
        subprocess.run([*pip, "--dest", cache, SDIST], check=True, capture_output=True, timeout=240)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{SDIST} cannot be downloaded: {error}")
    (archive,) = cache.glob("*.tar.gz")
    return archive
