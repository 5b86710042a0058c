"""What a terminal needs to know and a file does not: whether it is one, and harmless text."""

from __future__ import annotations

from typing import TextIO

# A terminal obeys control characters, and the model may write any; only these two are harmless.
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROL[ord("\n")], _CONTROL[ord("\t")]


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream, which may be closed, is a terminal."""
    return stream is not None and stream.isatty()


def printable(text: str) -> str:
    """Return text that a terminal shows and does not obey."""
    return text.translate(_CONTROL)
