"""The version of the installed package."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """Return the installed version of the package. Searching for it leaves garbage each time."""
    from importlib import metadata  # takes 30 ms; streaming does not need it

    return metadata.version("sinkstream")
