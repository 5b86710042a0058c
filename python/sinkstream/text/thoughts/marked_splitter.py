"""What the splitters of thoughts and of tool calls share: text held back until its kind is known.

Replies arrive as marked text, in which control tokens are single characters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from sinkstream.text.thoughts.thought_format import Kind

Parts = list[tuple[Kind, str]]

MAX_SPACES = 64
"""The most white space that is held back; the beginning of a longer run is passed on."""


class MarkedSplitter(ABC):
    """Splits one reply. Holds back only what may still become a tag, or white space next to one."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        """Split a reply; `shown` returns marked text as the reader sees it."""
        self._shown = shown
        self._held = ""

    def push(self, marked: str) -> Parts:
        """Add marked text; return the parts whose kind is now known."""
        self._held += marked
        parts: Parts = []
        while self._held and self._advance(parts):
            pass
        return parts

    @abstractmethod
    def _advance(self, parts: Parts) -> bool:
        """Move what is known from `_held` to `parts`; return whether there may be more."""

    def _give(self, parts: Parts, kind: Kind, marked: str) -> None:
        shown = self._shown(marked)
        if shown:
            parts.append((kind, shown))


def without_spaces(text: str, end: int) -> int:
    """Return where the white space before `end` begins, or where the last of it does."""
    return max(len(text[:end].rstrip()), end - MAX_SPACES)


def begun(text: str, tag: str) -> int:
    """Return how many of the last characters may begin a tag."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
