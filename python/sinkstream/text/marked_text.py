"""A reply's text with its control tokens, and the tags that are found in it: as plain data."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sinkstream.text.tokenizers.token_bytes import ReplyBytes, TokenBytes

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
    """Whether earlier replies may be written differently even without a thought: the generation
    prompt has a tag, or a message on a channel ends differently."""
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


Parts = list[tuple[Kind, str]]

MAX_SPACES = 64
"""The most white space that is held back; the beginning of a longer run is passed on."""


class MarkedText:
    """Puts markers into the text of one reply where its tags' tokens are.

    See Note: [Marked text]. A stream's text may lag behind its tokens: the bytes of an unfinished
    character and the beginning of a stop string are held back. So a token's position is counted in
    characters of the whole text.
    """

    def __init__(
        self, markers: Mapping[int, str], table: TokenBytes, hidden: Collection[int]
    ) -> None:
        """Mark the tokens of `markers`, by token id.

        Tokens in `hidden` have no text, nor have control tokens.
        """
        self._markers = markers
        self._bytes = ReplyBytes(table, hidden)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._written = 0  # characters of the tokens so far
        self._shown = 0  # of these, what has been returned, or replaced by markers
        self._partial = ""  # of a marked token whose text has not completely arrived
        self._waiting: deque[tuple[int, int, str]] = deque()  # begin, characters, marker

    def push(self, token_id: int, text: str) -> str:
        """Return the text that a token completes, with markers."""
        if not self._markers:
            return text
        before = self._written
        self._written += len(self._decoder.decode(self._bytes.next(token_id)))
        marker = self._markers.get(token_id)
        if marker is not None:
            shown = self._bytes.own(token_id).decode("utf-8", "replace")
            own = min(len(shown), self._written - before)
            self._waiting.append((self._written - own, own, marker))
        return self.push_text(text)

    def push_text(self, text: str) -> str:
        """Return more text of the tokens so far, with markers."""
        text = self._partial + text
        self._partial = ""
        marked = ""
        while self._waiting:
            begin, own, marker = self._waiting[0]
            known = begin - self._shown
            if len(text) < known + own:
                marked += text[:known]
                self._partial = text[known:]
                self._shown += min(known, len(text))
                return marked
            self._waiting.popleft()
            marked += text[:known] + marker
            text = text[known + own :]
            self._shown = begin + own
        self._shown += len(text)
        return marked + text

    def end(self) -> str:
        """Return what is left of a marked token's text if a stop string has cut off the rest."""
        partial, self._partial = self._partial, ""
        self._waiting.clear()
        return partial


class MarkedSplitter(ABC):
    """What the splitters of thoughts and of tool calls share; each splits one reply.

    Holds back only what may still become a tag, or white space next to one.
    """

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


def joined(parts: Sequence[tuple[Kind, str]], kind: Kind) -> str:
    """Return the text of one kind."""
    return "".join(text for of, text in parts if of == kind)
