"""Standard streams: terminals, text that is safe to show on one, and pipes that were closed."""

from __future__ import annotations

import os
import sys
from typing import TextIO

# Terminals interpret control characters, and a model may write any. Only newline and tab are safe.
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROL[ord("\n")], _CONTROL[ord("\t")]


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. None, a closed one, is not."""
    return stream is not None and stream.isatty()


def printable(text: str) -> str:
    """Replace control characters, so that a terminal shows them instead of obeying them."""
    return text.translate(_CONTROL)


def drop_output() -> None:
    """Discard standard output once its reader is gone, as `head` is after its last line.

    Otherwise Python would report the broken pipe again at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
