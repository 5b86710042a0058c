"""Terminals: what is one, how wide it is, and what text is safe to show on it."""

from __future__ import annotations

import os
import textwrap
from typing import TextIO

# Terminals interpret control characters, and a model may write any. Only newline and tab are safe.
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROL[ord("\n")], _CONTROL[ord("\t")]


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. None, a closed one, is not."""
    return stream is not None and stream.isatty()


def obeys_escapes() -> bool:
    """Return whether a terminal obeys escape sequences; that of an editor may not."""
    return os.environ.get("TERM", "dumb") != "dumb"


def printable(text: str) -> str:
    """Replace control characters, so that a terminal shows them instead of obeying them."""
    return text.translate(_CONTROL)


def width_of(stream: TextIO) -> int | None:
    """Return a terminal's width in cells; None for anything else, or if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal, closed, or without a descriptor
        return None


def fold(text: str, stream: TextIO) -> str:
    """Break lines at words where a terminal would break them anywhere; a pipe has no width."""
    width = width_of(stream)
    if width is None:
        return text
    lines = (textwrap.wrap(line, width, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(parts) for parts in lines)
