"""The version of the installed package."""

from __future__ import annotations


def version() -> str:
    """Return the installed version of the package."""
    from importlib import metadata  # takes 30 ms, which streaming does not need

    return metadata.version("sinkstream")
