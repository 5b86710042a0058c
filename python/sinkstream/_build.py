"""The version of the installed package."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the installed version of the package."""
    return metadata.version("sinkstream")
