"""A model as a store lists it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A name, and where its model is."""

    name: str
    """As `load` takes it."""
    store: str
    """`"folder"`, `"huggingface"`, `"lmstudio"`, `"ollama"` or `"package"`."""
    find: Callable[[], Path]
    """Return the file or the folder; raise what `load` would raise."""
