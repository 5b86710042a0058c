"""The version of the installed package."""

from __future__ import annotations


def version() -> str:
    """Return the installed version of the package."""
    from importlib import metadata  # takes 30 ms; streaming does not need it

    return metadata.version("sinkstream")
