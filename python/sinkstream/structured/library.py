"""Finds the functions of llguidance, which the engine calls without Python."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

from sinkstream import _core

RELEASE = "1.9."
"""What the version of a library with the functions that the core knows begins with."""
_REMEDY = "`pip install 'sinkstream[structured]'` installs it."


class LibraryMissing(Exception):
    """llguidance is missing, or the wrong release; the message completes a sentence."""


@functools.cache
def functions() -> dict[str, int]:
    """Return the addresses of llguidance's functions by name. The library is never unloaded.

    Raises:
        LibraryMissing: It is not installed, or is the wrong release.
    """
    library = _load()
    found = {}
    for name in _core.grammar_functions():
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            raise _wrong(f"an installation without `{name}`") from None
        assert address is not None
        found[name] = address
    version = _version(library)
    if not version.startswith(RELEASE):
        raise _wrong(version)
    return found


def _load() -> ctypes.CDLL:
    spec = importlib.util.find_spec("llguidance")
    if spec is None or spec.origin is None:
        raise LibraryMissing(f"llguidance {RELEASE}x, which is not installed. {_REMEDY}")
    files = sorted(Path(spec.origin).parent.glob("_lib*.so"))
    if not files:
        raise _wrong("an installation without its library")
    try:
        return ctypes.CDLL(str(files[0]))
    except OSError as error:
        raise _wrong(f"a library that cannot be loaded ({error})") from None


def _version(library: ctypes.CDLL) -> str:
    """Return "1.9.1" for "llguidance@1.9.1 derivre@0.3.13"."""
    library.llg_get_version.restype = ctypes.c_char_p
    text: bytes = library.llg_get_version()
    return text.decode().partition(" ")[0].rpartition("@")[2]


def _wrong(found: str) -> LibraryMissing:
    return LibraryMissing(f"llguidance {RELEASE}x, but {found} was found. {_REMEDY}")
