"""Recognizes terminals, and makes text safe to show on one."""

from __future__ import annotations

from typing import TextIO

# Terminals interpret control characters, and a model may write any; only these two are harmless.
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROL[ord("\n")], _CONTROL[ord("\t")]


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. None, a closed one, is not."""
    return stream is not None and stream.isatty()


def printable(text: str) -> str:
    """Replace control characters, so that a terminal shows them instead of obeying."""
    return text.translate(_CONTROL)
