"""What a checkpoint's template writes around thoughts, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["text", "thought", "tool_call"]
Start = Literal["before", "thought", "text"]

# Note: [Marked text]
# A tag is a string in which each added token is one character, its marker. Markers are lone
# surrogates, which no decoded text contains, so that a tag that is a token matches that token only,
# and never the same letters in other tokens.
_FIRST_MARKER = 0xD800


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """The tags around thoughts, without white space at their ends. See Note: [Marked text]."""

    begin: str
    end: str
    answer: str
    """What the template writes before a reply without a thought; usually nothing."""
    start: Start
    """Where the generation prompt leaves the model: before a thought that it may begin, inside a
    thought, or in the text."""
    continued: Start
    """The same for the text of a last message, which the reply continues."""
    is_prompted: bool
    """Whether the generation prompt has a tag, which earlier replies need not have."""
    is_kept: bool
    """Whether the template writes the thoughts of earlier replies."""
    markers: Mapping[int, str]
    """The marker of each token in a tag."""
    literals: Mapping[str, str]
    """What a stream shows for a marker that is not part of a tag: nothing for a control token."""

    def starting(self, start: Start) -> ThoughtFormat:
        """Return the same tags for a reply that begins elsewhere."""
        return replace(self, start=start)

    def spelled(self) -> ThoughtFormat:
        """Return the same tags, with markers only for control tokens.

        A grammar cannot distinguish other added tokens from the same letters in other tokens.
        """
        shown = {marker: literal for marker, literal in self.literals.items() if literal}
        return replace(
            self,
            begin=_replaced(self.begin, shown),
            end=_replaced(self.end, shown),
            answer=_replaced(self.answer, shown),
            markers={i: marker for i, marker in self.markers.items() if marker not in shown},
            literals={marker: "" for marker in self.literals if marker not in shown},
        )

    def shown(self, marked: str) -> str:
        """Return marked text as a stream shows it."""
        return _replaced(marked, self.literals)


def _replaced(marked: str, literals: Mapping[str, str]) -> str:
    for marker, literal in literals.items():
        marked = marked.replace(marker, literal)
    return marked


def marker(number: int) -> str:
    """Return the marker of one of a format's tokens."""
    return chr(_FIRST_MARKER + number)
