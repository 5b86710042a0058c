"""Reads a reply's tokens, and separates thoughts from text."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sinkstream.text.channels import ChannelSplitter, channels_of
from sinkstream.text.marked_text import (
    MAX_SPACES,
    Kind,
    MarkedSplitter,
    MarkedText,
    Parts,
    ThoughtFormat,
    begun,
    joined,
    without_spaces,
)
from sinkstream.text.messages import ToolCall
from sinkstream.text.tokenizers.token_bytes import ReplyBytes, TokenBytes

_State = Literal["before", "first", "thought", "after", "text"]


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
        calls: The tool calls that have begun.
    """

    def __init__(self, tags: ThoughtTags, recipient: str = "") -> None:
        """Read a reply with these tags; `recipient` as for `ChannelSplitter`."""
        self._marked = MarkedText(tags.form.markers, tags.table, tags.hidden)
        self.tokens = 0
        self.calls: list[ToolCall] = []
        channels = channels_of(tags.form)
        if channels is None:
            self._splitter: ThoughtSplitter | ChannelSplitter = ThoughtSplitter(tags.form)
        else:
            self._splitter = ChannelSplitter(tags.form, channels, recipient)
            self.calls = self._splitter.calls

    def token(self, token_id: int, text: str) -> tuple[Kind, Parts]:
        """Return what a token belongs to, and what is now known with the text it completes."""
        before = self._splitter.kind
        parts = self._splitter.push(self._marked.push(token_id, text))
        kinds = (before, self._splitter.kind)
        kind: Kind = "thought" if "thought" in kinds else self._splitter.kind
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
