"""Reads a reply's tokens, and separates thoughts from text."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from sinkstream.text.messages import ToolCall
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


Parts = list[tuple[Kind, str]]

MAX_SPACES = 64
"""The most white space that is held back; the beginning of a longer run is passed on."""
_State = Literal["before", "first", "thought", "after", "text"]


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


class ThoughtSplitter(MarkedSplitter):
    """Splits one reply into thoughts and text.

    However the text is cut into pieces, the joined thoughts and the joined text are the same. White
    space around a thought is the template's and is left out. A thought can only begin a reply: tags
    that come later are ordinary text.
    """

    def __init__(self, form: ThoughtFormat) -> None:
        super().__init__(form.shown)
        self._form = form
        # Before a thought, first in it, inside, after it, in the text.
        self._state: _State = "first" if form.start == "thought" else form.start

    @property
    def kind(self) -> Kind:
        """Return what the next text is, as far as known."""
        return "thought" if self._state in ("first", "thought") else "text"

    def end(self) -> Parts:
        """Return what was held back, at the end of the reply."""
        parts: Parts = []
        if self._state != "after":
            self._give(parts, self.kind, self._held)
        self._held = ""
        return parts

    def _advance(self, parts: Parts) -> bool:
        if self._state == "before":
            return self._look_for_thought(parts)
        if self._state == "first":
            return self._begin_thought()
        if self._state == "thought":
            return self._continue_thought(parts)
        text = self._held.lstrip() if self._state == "after" else self._held
        if text:
            self._state = "text"
        self._give(parts, "text", text)
        self._held = ""
        return False

    def _look_for_thought(self, parts: Parts) -> bool:
        begin, answer = self._form.begin, self._form.answer
        rest = self._held.lstrip()
        if len(self._held) - len(rest) <= MAX_SPACES:
            if rest.startswith(begin):
                self._state, self._held = "first", rest[len(begin) :]
                return True
            if answer and rest.startswith(answer):
                self._state, self._held = "after", rest[len(answer) :]
                return True
            if begin.startswith(rest) or answer.startswith(rest):
                return False
        self._state = "text"
        return True

    def _begin_thought(self) -> bool:
        """Leave out white space, and a tag that repeats the one in the prompt."""
        begin = self._form.begin
        self._held = self._held.lstrip()
        if self._held.startswith(begin):
            self._held = self._held[len(begin) :]
            return True
        if begin.startswith(self._held):
            return False
        self._state = "thought"
        return True

    def _continue_thought(self, parts: Parts) -> bool:
        found = self._held.find(self._form.end)
        if found >= 0:
            known = without_spaces(self._held, found)
            self._give(parts, "thought", self._held[:known])
            self._state, self._held = "after", self._held[found + len(self._form.end) :]
            return True
        known = without_spaces(self._held, len(self._held) - begun(self._held, self._form.end))
        self._give(parts, "thought", self._held[:known])
        self._held = self._held[known:]
        return False


class Split(NamedTuple):
    """A reply, split into thoughts, text and calls."""

    thought: str
    text: str
    tokens: int
    """The number of tokens in thoughts and their tags."""
    kind: Kind
    """Where the reply ends."""
    calls: list[ToolCall]
    """The tools that it calls."""


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """A checkpoint's tags and the bytes of its tokens, which are needed to read each reply."""

    form: ThoughtFormat
    table: TokenBytes
    hidden: Collection[int]
    """Tokens without text in addition to the control tokens: those that end replies."""

    def all_text(self) -> ThoughtTags:
        """Return the same tags for replies that are text from the start."""
        return ThoughtTags(self.form.starting("text"), self.table, self.hidden)

    def continuing(self, given: str | None) -> ThoughtTags:
        """Return the same tags for a reply whose beginning was `given`, rather than generated.

        The template has written that as a message, without a generation prompt. If it is None,
        nothing was.
        """
        if given is None:
            return self
        form = self.form.starting(self.form.continued)
        if given.strip():
            splitter = ThoughtSplitter(form)
            for marker, literal in form.literals.items():
                given = given.replace(literal, marker) if literal else given
            splitter.push(given)
            form = form.starting("thought" if splitter.kind == "thought" else "text")
        return ThoughtTags(form, self.table, self.hidden)

    def reader(self, given: str | None = None) -> ThoughtReader:
        """Return a reader of a reply, whose beginning was `given`, if it is not None."""
        return ThoughtReader(self.continuing(given))

    def split(self, ids: Iterable[int], *, is_whole: bool = True) -> Split:
        """Split a reply. If not whole, `ids` are the last of one that began with a thought."""
        tags = self if is_whole else self.inside_thought()
        return tags.split_with(ThoughtReader(tags), ids)

    def inside_thought(self) -> ThoughtTags:
        """Return the same tags for the end of a reply that began with a thought."""
        return ThoughtTags(self.form.starting("thought"), self.table, self.hidden)

    def split_with(self, reader: ThoughtReader, ids: Iterable[int]) -> Split:
        """Split a reply with a reader for these tags that has read nothing yet."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        shown = ReplyBytes(self.table, self.hidden)
        parts: Parts = []
        for token_id in ids:
            parts += reader.token(token_id, decoder.decode(shown.next(token_id)))[1]
        parts += reader.end(decoder.decode(b"", final=True))
        thought, text = joined(parts, "thought"), joined(parts, "text")
        return Split(thought, text, reader.tokens, reader.kind, reader.calls)


class ThoughtReader:
    """For one reply.

    Attributes:
        tokens: How many tokens of thoughts and their tags have been read.
        calls: The tool calls that have begun; only a `CallReader` finds any.
    """

    def __init__(self, tags: ThoughtTags) -> None:
        self._marked = MarkedText(tags.form.markers, tags.table, tags.hidden)
        self._splitter = ThoughtSplitter(tags.form)
        self.tokens = 0
        self.calls: list[ToolCall] = []

    def token(self, token_id: int, text: str) -> tuple[Kind, Parts]:
        """Return what a token belongs to, and what is now known with the text it completes."""
        before = self._splitter.kind
        parts = self._splitter.push(self._marked.push(token_id, text))
        kind: Kind = "thought" if "thought" in (before, self._splitter.kind) else "text"
        self.tokens += kind == "thought"
        return kind, parts

    @property
    def kind(self) -> Kind:
        """Return what the next token belongs to, as far as known."""
        return self._splitter.kind

    def push_text(self, text: str) -> Parts:
        """Return what is known with further text, which belongs to no new token."""
        return self._splitter.push(self._marked.push_text(text))

    def end(self, text: str = "") -> Parts:
        """Return what was held back, at the end of the reply; a second call returns nothing."""
        marked = self._marked.push_text(text) + self._marked.end()
        return self._splitter.push(marked) + self._splitter.end()


def joined(parts: Sequence[tuple[Kind, str]], kind: Kind) -> str:
    """Return the text of one kind."""
    return "".join(text for of, text in parts if of == kind)
